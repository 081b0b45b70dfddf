"""Short builders of nodes, pods and states for tests."""

from __future__ import annotations

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.k8s.admission_objects import PodDisruptionBudget
from extender.k8s.affinity import NodeSelectorRequirement
from extender.k8s.objects import Container, Event, Listed, Node, Pod, PodSpec, Upserted
from extender.protocol.node_names import NodeNames
from extender.settings import Settings
from extender.verbs.evaluate import evaluate
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.policies.registry import POLICIES

GPU = "nvidia.com/gpu"
NOW = 1_800_000_000.0
"""The moment of tests that need one, in Unix seconds."""
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}


def make_node(name: str, gpus: int = 8, *, labels: dict[str, str] | None = None, **resources: str) -> Node:
    """A node of H100s; ``resources`` replace or add to allocatable, with ``__`` for a slash."""
    allocatable = {"cpu": "64", "memory": "512Gi", GPU: str(gpus)}
    allocatable |= {key.replace("__", "/"): value for key, value in resources.items()}
    return Node(name, uid=f"node-{name}", labels=H100 | (labels or {}), allocatable=allocatable)


def make_pod(name: str, gpus: int = 1, *, resource: str = GPU, cpu: str = "1", uid: str = "", **more) -> Pod:
    """A pod that requests ``gpus`` devices (0: no device); ``more`` are fields of Pod. A bound one runs."""
    more = {"phase": "Running"} | more if more.get("node_name") else more
    requests = (("cpu", cpu), ("memory", "1Gi")) + (((resource, str(gpus)),) if gpus else ())
    spec = more.pop("spec", PodSpec((Container("main", requests),)))
    return Pod("default", name, uid or f"uid-{name}", spec, **more)


def make_state(*objects: Node | Pod, synced: bool = True, binds: bool = False) -> State:
    """A state with these objects and the policy best-fit."""
    state = State(POLICIES["best-fit"]())
    state.binds = binds
    events: list[Event] = [Upserted(one) for one in objects]
    if synced:
        events += [Listed("Node", frozenset(o.key for o in objects if isinstance(o, Node)))]
        events += [Listed("Pod", frozenset(o.key for o in objects if isinstance(o, Pod)))]
    state.apply(events)
    return state


GUARDED = {"guarded": "yes"}
"""Labels of pods that the PodDisruptionBudget of ``guard`` selects."""


def guard(state: State, allowed: int) -> None:
    """Of the pods labelled ``GUARDED`` at most so many may be evicted."""
    selector = (NodeSelectorRequirement("guarded", "In", ("yes",)),)
    state.apply([Upserted(PodDisruptionBudget("default", "guard", selector, allowed))])


def make_settings(**keys) -> Settings:
    """The default settings with these changes."""
    return Settings(**keys)


def why(state: State, pod: Pod, node: str, request: Request | None = None) -> Reason:
    """The reason for this pod on this node; ``request`` replaces the request of the pod."""
    return Reason(int(evaluate(state, pod, request or request_of(pod), NodeNames.of([node])).codes[0]))
