"""A cluster of its own on which pods go and come: as kube-scheduler and Stowage place them together.

A pod is evaluated by the code of the verbs, and then shown to the state as the watch would show it, with the
annotations that ``bind`` writes where Stowage writes them. What assigns GPUs to the pods that run today
assigns them in the simulation, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from extender.cluster.allocations import Placement
from extender.cluster.state import State
from extender.dialects.dialect import Claim, Claims
from extender.dialects.pod_request import ASSIGNMENT_ANNOTATIONS, WRITERS
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.protocol.node_names import NodeNames
from extender.replay.simulation import Answer, Gang, Item
from extender.verbs.assignment import annotations_for
from extender.verbs.evaluate import evaluate, form_on
from extender.verbs.gang_fit import Supposed, gang_would_fit
from packing.fleet.fleet import Fleet
from packing.fleet.node_usage import Allocation
from packing.fleet.placement import placed_shares
from packing.model.reasons import Reason
from packing.model.request import Request


class _Bound(NamedTuple):
    """A pod with a node. ``placement`` says which GPUs it has where none of our annotations can."""

    pod: Pod
    placement: Placement | None = None


class ClusterEngine:
    """Places the pods of one state, which nobody else uses. The policy learns nothing from that."""

    def __init__(self, state: State) -> None:
        self.state = state
        state.learner.stopped = True
        state.assigns_all = True
        state.numa.clear()
        self._bound: dict[tuple[str, Allocation], _Bound] = {}
        self._names, self._named_at = NodeNames.of(()), -1

    @property
    def fleet(self) -> Fleet:
        return self.state.fleet

    def evaluate(self, item: Item) -> Answer:
        """By the code that answers ``filter`` and ``prioritize``, about all nodes. Devices of DRA are not
        placed here, so a node where the pod needs some does not count."""
        assert item.pod is not None
        capacity = self.fleet.arrays.capacity
        codes = np.full(capacity, Reason.UNKNOWN_NODE, np.int8)
        cost = np.full(capacity, np.inf, np.float32)
        found = evaluate(self.state, item.pod, item.request, self._all_names())
        codes[found.rows], cost[found.rows] = found.codes, found.cost
        if found.forecasts:
            by_claims = np.array([bool(one.devices or one.problem) for one in found.forecasts])
            codes[found.rows[by_claims]] = Reason.NO_SUCH_RESOURCE
        return Answer(codes, cost)

    def rejections(self, item: Item, rows: Sequence[int]) -> list[str]:
        assert item.pod is not None
        rejection, specs = self.state.node_filter(item.pod).rejection, self.fleet.specs
        found = (rejection(self.state.nodes[spec.name]) for row in rows if (spec := specs[row]))
        return [why for why in found if why]

    def gang_of(self, item: Item) -> Gang | None:
        """As ``filter`` sees it, but for evictions, which nobody makes here."""
        assert item.pod is not None
        gang = self.state.gangs.gang_of(item.pod) if self.state.gang_check else None
        if gang is None or gang.to_place < 2:
            return None
        others = [
            one for one in self.state.gangs.members(gang.key) if one.key != item.key and not one.deleting
        ]
        if any(one.node_name for one in others):
            return None
        if not gang_would_fit(self.state, item.pod, item.request, Supposed(self.state.nodes)):
            return Gang((), 0)
        free = [one.key for one in others if not one.gates]
        return Gang(free, min(gang.to_place, 1 + len(free)))

    def _all_names(self) -> NodeNames:
        if self._named_at != self.fleet.replaced:
            self._names, self._named_at = NodeNames.of(self.fleet.rows), self.fleet.replaced
        return self._names

    def bind(self, item: Item, row: int) -> Allocation | None:
        assert item.pod is not None
        spec = self.fleet.specs[row]
        assert spec is not None
        request = form_on(self.fleet, row, item.request)
        gpus = self.state.policy.choose(self.fleet, request, row)
        bound = replace(item.pod, node_name=spec.name, phase="Running")
        if not gpus:
            return self._show(_Bound(bound))
        if spec.sharing_resource not in WRITERS:
            return self._show(_Bound(bound, _placement(bound, self.fleet, row, request, gpus)))
        try:
            assignment, _ = annotations_for(self.fleet, row, item.pod, request, gpus)
        except RequestError:
            return None
        return self._show(_Bound(replace(bound, annotations={**bound.annotations, **assignment})))

    def bind_again(self, item: Item, held: Allocation) -> Allocation:
        return self._show(self._bound[item.key, held])

    def unbind(self, item: Item) -> None:
        held = self.state.allocations.allocation_of(item.key)
        if held is not None:
            self._bound.setdefault((item.key, held), _Bound(self.state.pods[item.key]))
        self.state.apply([Deleted("Pod", item.key)])

    def _show(self, bound: _Bound) -> Allocation:
        allocations, key = self.state.allocations, bound.pod.key
        allocations.deferred = bound.placement is not None  # its annotations say nothing of its GPUs
        self.state.apply([Upserted(bound.pod)])
        if bound.placement:
            allocations.deferred = False
            allocations.allocate(key, bound.placement)
            self.state.sync_nodes([bound.pod.node_name])
        held = allocations.allocation_of(key)
        assert held is not None  # its node is known
        self._bound[key, held] = bound
        return held


def _placement(pod: Pod, fleet: Fleet, row: int, request: Request, gpus: tuple[int, ...]) -> Placement | None:
    """The pod with these GPUs, as if the sharing system had said so."""
    part, spec = placed_shares(fleet, row, request), fleet.specs[row]
    if part is None or spec is None:
        return None
    size = part.compute_milli, part.memory_mib, part.memory_milli, part
    claims = Claims(spec.sharing_resource, tuple(Claim(str(gpu), *size) for gpu in gpus))
    return Placement(pod.node_name, request, claims, priority=pod.priority, uid=pod.uid)


def as_new(pod: Pod) -> Pod:
    """The pod as its controller creates it again: without a node, devices, and assignments."""
    kept = {name: text for name, text in pod.annotations.items() if name not in ASSIGNMENT_ANNOTATIONS}
    return replace(
        pod,
        node_name="",
        phase="Pending",
        nominated_node="",
        started=0.0,
        devices=(),
        annotations=kept,
        resized=None,
    )
