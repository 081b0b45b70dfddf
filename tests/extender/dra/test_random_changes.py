"""A State that was asked after each change answers like a new one with the same objects."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dra.forecast import AllocationSimulator
from extender.explain.node import view_node
from extender.k8s.objects import Container, Deleted, Event, KubernetesObject, PodClaim, PodSpec, Upserted
from extender.k8s.resource_claims import DeviceClass, ResourceClaim
from extender.k8s.resource_slices import DeviceTaintRule, ResourceSlice
from extender.protocol.node_names import NodeNames
from extender.verbs.evaluate import evaluate
from tests.examples import examples
from tests.extender.builders import GPU, NOW, make_node, make_pod, make_state
from tests.extender.dra.claims import allocated, gpu_claim, many, request, selectors
from tests.extender.dra.nvidia import Manifest, spec
from tests.extender.dra.records import parse_claim, parse_class, parse_slice, parse_taint_rule

NODES = ("a", "b", "c")
ALL_OR_ONE = [
    request(allocationMode="All")["exactly"] | {"name": "all"},
    request()["exactly"] | {"name": "one"},
]
CLAIMS = {
    "one": gpu_claim(),
    "two": gpu_claim(count=2),
    "all": gpu_claim(allocationMode="All"),
    "admin": gpu_claim(allocationMode="All", adminAccess=True),
    "either": many({"firstAvailable": ALL_OR_ONE}),
}
PODS = [make_pod("resource", 1)] + [
    make_pod(name, spec=PodSpec((Container("main"),), claims=(PodClaim("c", name),))) for name in CLAIMS
]


def device(number: int, consumed: int = 0, **more: object) -> Manifest:
    texts = {"type": "gpu", "productName": "A100", "profile": "1g.5gb"}
    counters = [{"counterSet": "set", "counters": {"slices": {"value": str(consumed)}}}]
    return {
        "name": f"d{number}",
        "attributes": {key: {"string": text} for key, text in texts.items()},
        **({"consumesCounters": counters} if consumed else {}),
        **more,
    }


def resource_slice(
    name: str, pool: str, scope: Manifest, contents: Manifest, count: int = 1, generation: int = 1
) -> ResourceSlice:
    raw = spec(count=count, generation=generation, node=pool)
    return parse_slice(name, raw | {"nodeName": None} | contents | scope)


def counters(total: int) -> Manifest:
    return {"sharedCounters": [{"name": "set", "counters": {"slices": {"value": str(total)}}}]}


def gpu_class(expression: str, resource: str = GPU) -> DeviceClass:
    return parse_class("gpu.nvidia.com", {**selectors(expression), "extendedResourceName": resource})


def taint_rule(name: str, selector: Manifest) -> DeviceTaintRule:
    taint = {"key": "broken", "effect": "NoSchedule"}
    return parse_taint_rule("DeviceTaintRule", name, {"deviceSelector": selector, "taint": taint})


def holder(name: str, *results: Manifest) -> ResourceClaim:
    return parse_claim("default", name, {"devices": gpu_claim()}, allocated(*results) if results else None)


EAST = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["east"]}]}
SCOPES: list[Manifest] = [
    *({"nodeName": "a"}, {"allNodes": True}),
    *({"nodeSelector": {"nodeSelectorTerms": [EAST]}}, {"nodeName": "b"}),
]
CONTENTS = (
    {"devices": [device(0)]},
    {"devices": [device(0), device(1)]},
    {"devices": [device(0, 1), device(1, 2)], **counters(2)},
    {"devices": [device(2, 1)], **counters(4)},
    {"devices": [device(0, 1)]},  # of counters that another slice may have
    counters(4),
)
PER_DEVICE = {
    "perDeviceNodeSelection": True,
    "devices": [device(0, nodeName="a"), device(1, allNodes=True)],
}
SLICES = [
    *(resource_slice(*one) for one in product(("s0", "s1", "s2"), "pq", (*SCOPES, PER_DEVICE), CONTENTS[:4])),
    *(resource_slice(*one) for one in product(("s0", "s1"), "p", SCOPES, CONTENTS, (1, 2), (1, 2))),
]
LABELLED = [make_node(name, 0, labels={"zone": zone}) for name, zone in product(NODES, ("east", "west"))]
OTHERS = [
    *(holder("h0", {"pool": pool, "device": device}) for pool, device in product("pq", ("d0", "d1"))),
    *(holder("h1"), holder("h1", {"pool": "q", "device": ""}), holder("h1", {"pool": ""})),
    *(taint_rule("r0", {"pool": "p"}), taint_rule("r1", {"device": "d0"}), taint_rule("r1", {"odd": 1})),
    *(gpu_class("true"), gpu_class("false"), gpu_class("true", ""), gpu_class("dyn(true)")),
]
START = [
    *LABELLED[::2],
    *(gpu_class("true"), holder("h0"), holder("h1")),
    resource_slice("s0", "p", SCOPES[0], CONTENTS[1]),
    resource_slice("s1", "q", SCOPES[2], CONTENTS[0]),
]


def deleted(one: KubernetesObject) -> Deleted:
    return Deleted(one.kind, one.key)


kinds = [st.sampled_from(one) for one in (SLICES, LABELLED, OTHERS)]
events = st.one_of(*(one.map(Upserted) for one in kinds), *(one.map(deleted) for one in kinds))


def with_objects(objects: list[KubernetesObject]) -> State:
    claims = (parse_claim("default", name, {"devices": devices}, None) for name, devices in CLAIMS.items())
    state = make_state()
    state.apply([Upserted(one) for one in (*objects, *claims)])
    return state


def answers(state: State) -> dict[str, Any]:
    """All that depends on devices."""
    found = dict[str, Any]()
    nodes = [(name, state.nodes.labels_of(name)) for name in NODES]
    freed = AllocationSimulator(state.devices.without_claims(["default/h0"]))
    for pod in PODS:
        evaluation = evaluate(state, pod, request_of(pod), NodeNames.of(NODES))
        found[pod.name] = evaluation.codes.tolist(), evaluation.forecasts, freed.forecasts(pod, nodes)
    assert not state.failures.counts
    views = {name: view_node(state, name, NOW) for name in NODES}
    return found | views | {"slots": state.devices.total_slots, "problems": state.problems}


@settings(max_examples=examples(100))
@given(st.lists(events, max_size=20))
def test_the_answers_are_those_of_a_new_state(events: list[Event]) -> None:
    objects = {(one.kind, one.key): one for one in START}
    state = with_objects(START)
    answers(state)
    for event in events:
        state.apply([event])
        if isinstance(event, Upserted):
            objects[event.kind, event.obj.key] = event.obj
        elif isinstance(event, Deleted):
            objects.pop((event.kind, event.key), None)
        assert answers(state) == answers(with_objects([objects[key] for key in sorted(objects)]))
