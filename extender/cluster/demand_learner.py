"""Teaches the policy which requests arrive: the demand mix that it expects.

Only the watch teaches, never a call of a verb: kube-scheduler asks many times about one pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from extender.cluster.demand_monitor import DemandMonitor
from extender.cluster.node_sets import NodeSets
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_requirement import node_requirement
from extender.k8s.objects import Pod
from extender.untrusted.limits import NAME, TAUGHT_NAMES
from packing.fleet.feasibility import could_host
from packing.fleet.fleet import Fleet
from packing.model.request import Request
from packing.policies.interface import Policy

_MOST_REQUESTS = 1000
"""Requests for which it is remembered whether a node could host them."""


class DemandLearner:
    """Shows each pod to the policy once: when the watch first shows it without scheduling gates, or, where no
    node could host it then, when it is bound. Before the nodes are known, pods wait for ``start``. ``learnt``
    counts the pods that the policy has learnt from; ``monitor`` has their requests, and figures of them.
    ``stopped``: it learns nothing more.
    """

    def __init__(self, policy: Policy, fleet: Fleet, node_sets: NodeSets) -> None:
        self._policy, self._fleet, self._node_sets = policy, fleet, node_sets
        self.learnt = 0
        self.stopped = False
        self.monitor = DemandMonitor(fleet)
        self._started = False
        self._untaught: dict[str, None] = {}  # keys of pods, in the order in which they came
        self._hostable: dict[Request, bool] = {}
        self._hostable_at = fleet.replaced

    def start(self, pods: Mapping[str, Pod]) -> None:
        """All nodes are known: learn from the pods that came before them."""
        if not self._started:
            self._started = True
            for key in [*self._untaught]:
                self._learn(pods[key])

    def learn_from(self, pod: Pod, before: Pod | None) -> None:
        """Learn from a pod as the watch shows it; ``before`` is what it showed under this name."""
        if pod.terminated:
            self.forget(pod.key)
        elif before is None or before.uid != pod.uid:
            self._untaught[pod.key] = None
            self._learn(pod)
        elif (before.node_name, before.gates) != (pod.node_name, pod.gates):
            self._learn(pod)

    def forget(self, key: str) -> None:
        self._untaught.pop(key, None)

    def keep(self, keys: frozenset[str]) -> None:
        """All pods but these are gone."""
        for key in self._untaught.keys() - keys:
            self.forget(key)

    def _learn(self, pod: Pod) -> None:
        if self.stopped or not self._started or pod.gates or pod.key not in self._untaught:
            return
        request = _typical_request(pod)
        if request is None:
            self.forget(pod.key)
        elif self._can_be_hosted(request):
            self.forget(pod.key)
            if (required := node_requirement(pod)) is not None:
                request = replace(request, node_set=required)
                self._node_sets.observe(request)
            self._policy.observe(request)
            self.monitor.observe(request)
            self.learnt += 1

    def _can_be_hosted(self, request: Request) -> bool:
        """Whether some node could host it when empty. The policy keeps no room for what nobody can get."""
        if self._hostable_at != self._fleet.replaced or len(self._hostable) >= _MOST_REQUESTS:
            self._hostable.clear()
            self._hostable_at = self._fleet.replaced
        if request not in self._hostable:
            self._hostable[request] = could_host(self._fleet, request)
        return self._hostable[request]


def _typical_request(pod: Pod) -> Request | None:
    """The pod's request, if it takes GPUs and is no longer than requests that other pods may share."""
    try:
        request = request_of(pod)
    except RequestError:
        return None
    names = [*request.products.allow, request.products.deny, *request.uuids.allow, request.uuids.deny]
    listed = sum(map(len, names)) + len(request.models or ())
    return request if request.wants_gpu and listed <= TAUGHT_NAMES and len(request.mode) <= NAME else None
