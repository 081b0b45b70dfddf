"""All members of a gang that requires a topology domain run in one, whatever happens in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster import gang_domains
from extender.cluster.reservations import Reserved
from extender.cluster.state import State
from extender.evictor.book import Schedulers
from extender.evictor.planner import Asked, Planner
from extender.explain.pod import explain
from extender.k8s.job_kinds import JobManifest, PodGroupManifest
from extender.k8s.objects import Deleted, Node, Pod, PodGroup, RequiredDomain, Upserted
from extender.protocol.codec import FilterArgs
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import GANG_LEVELS, KEY
from extender.verbs.eviction.plan import plan_evictions
from extender.verbs.filter import filter_nodes
from packing.model.reasons import Reason
from tests.examples import examples
from tests.extender.builders import NOW, make_node, make_pod, make_settings, make_state

RACK, HOST = "example.com/rack", "kubernetes.io/hostname"
KUEUE = {"kueue.x-k8s.io/podset-required-topology": RACK}
KAI = {"kai.scheduler/topology-required-placement": RACK}


def racks(**nodes: int) -> list[Node]:
    """So many nodes of 8 GPUs for each rack: ``a0``, ``a1``, ... in rack ``a``."""
    names = [(rack, f"{rack}{number}") for rack, count in nodes.items() for number in range(count)]
    return [make_node(name, labels={RACK: rack, HOST: name}) for rack, name in names]


def member(number: int, count: int, annotations: dict[str, str], **more: object) -> Pod:
    labels = {"stowage.dev/gang": "g", "stowage.dev/gang-min": str(count)}
    labels |= {"batch.kubernetes.io/job-completion-index": str(number)}
    return make_pod(f"w{number}", 8, labels=labels, annotations=annotations, **more)


def gang(count: int, annotations: dict[str, str], **more: object) -> list[Pod]:
    return [member(number, count, annotations, **more) for number in range(count)]


def checked(*objects: Node | Pod) -> State:
    state = make_state(*objects)
    state.gang_check = True
    return state


def fits(state: State, pod: Pod, among: Sequence[str] = ()) -> list[str]:
    names = NodeNames.of(sorted(among or state.nodes))
    return list(filter_nodes(state, FilterArgs(pod, names), make_settings(shortlist=0))[0].names)


def refused(state: State, pod: Pod) -> dict[str, list[str]]:
    args = FilterArgs(pod, NodeNames.of(sorted(state.nodes)))
    result = filter_nodes(state, args, make_settings(shortlist=0))[0]
    return {why: list(names) for why, names in (result.failed | result.unresolvable).items()}


def bind(state: State, pod: Pod, node: str) -> None:
    state.apply([Upserted(replace(pod, node_name=node, phase="Running"))])


@pytest.mark.parametrize("annotations", [KUEUE, KAI])
def test_the_first_member_may_use_one_domain_that_has_room_for_all(annotations: dict[str, str]) -> None:
    pods = gang(3, annotations)
    state = checked(*racks(a=2, b=4, c=3), make_node("bare"), *pods)
    assert [fits(state, pod) for pod in pods] == [["c0", "c1", "c2"]] * 3  # the smallest
    assert refused(state, pods[0]) == {
        Reason.NO_DOMAIN.text: ["bare"],
        Reason.OTHER_DOMAIN.text: ["a0", "a1", "b0", "b1", "b2", "b3"],
    }


def test_a_replacement_waits_for_the_domain_of_the_others() -> None:
    pods = gang(2, KUEUE)
    state = checked(*racks(a=2, b=4), *pods)
    for pod, node in zip(pods, ("a0", "a1"), strict=True):
        bind(state, pod, node)
    state.apply([Deleted("Pod", pods[1].key), Upserted(make_pod("other", 8, node_name="a1"))])
    new = replace(pods[1], name="w1-new", uid="w1-new")
    state.apply([Upserted(new)])
    assert fits(state, new) == []
    assert refused(state, new) == {
        Reason.NO_FREE_GPUS.text: ["a0", "a1"],
        Reason.OTHER_DOMAIN.text: ["b0", "b1", "b2", "b3"],
    }
    assert "in one rack (a)" in explain(state, new, now=NOW).gang
    state.apply([Deleted("Pod", "default/other")])
    assert fits(state, new) == ["a1"]


def test_a_slice_stays_in_one_domain_and_slices_may_be_apart() -> None:
    slices = {"kueue.x-k8s.io/podset-slice-required-topology": RACK, "kueue.x-k8s.io/podset-slice-size": "2"}
    pods = gang(4, slices)
    state = checked(*racks(a=2, b=3), *pods)
    assert fits(state, pods[0]) == ["a0", "a1"]
    bind(state, pods[0], "a0")
    assert fits(state, pods[1]) == ["a1"]
    assert fits(state, pods[2]) == ["b0", "b1", "b2"]
    assert "in slices of 2 in one rack (a)" in explain(state, pods[1], now=NOW).gang
    alone = checked(*racks(a=3, b=1), *pods)
    assert fits(alone, pods[0]) == []
    first = gang(4, slices)[:1]
    assert fits(checked(*racks(a=3, b=1), *first), first[0]) == []
    assert fits(checked(*racks(a=3, b=3), *first), first[0]) in (["a0", "a1", "a2"], ["b0", "b1", "b2"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"kueue.x-k8s.io/podset-slice-required-topology": RACK},
        {"kueue.x-k8s.io/podset-slice-required-topology": RACK, "kueue.x-k8s.io/podset-slice-size": "0"},
        {"kueue.x-k8s.io/podset-slice-required-topology-constraints": "[]"},
        {"kueue.x-k8s.io/podset-required-topology": "a" * (KEY + 1)},
        {"kai.scheduler/topology-required-placement": "rack of the\nowner"},
        {"kai.scheduler/topology-required-placement": "rack"},  # an alias of a Topology
    ],
)
def test_a_level_that_cannot_be_read_is_met_by_no_node(wrong: dict[str, str]) -> None:
    pods = gang(2, wrong)
    state = checked(*racks(a=2), *pods)
    assert refused(state, pods[0]) == {Reason.NO_DOMAIN.text: ["a0", "a1"]}


def pod_group(spec: dict[str, object], api: str) -> PodGroup:
    value = {"apiVersion": api, "metadata": {"name": "g", "namespace": "default"}, "spec": spec}
    return PodGroupManifest.from_value(value).record()


def required(level: str) -> dict[str, object]:
    return {"topologyConstraint": {"topology": "t", "requiredTopologyLevel": level}}


def test_subgroups_of_kai_share_the_domains_of_those_above_them() -> None:
    parts = [
        {"name": "ab", **required("spine")},
        {"name": "a", "parent": "ab", "minMember": 1, **required("rack")},
        {"name": "b", "parent": "ab", "minMember": 2},
        {"name": "round", "parent": "and-round", **required("rack")},
        {"name": "and-round", "parent": "round"},
    ]
    group = pod_group({"subGroups": parts, **required("zone")}, "scheduling.run.ai/v2alpha2")
    assert group.domains == (RequiredDomain("zone"),)
    assert group.domains_of["a"] == (RequiredDomain("spine", "ab"), RequiredDomain("rack", "a"))
    assert group.domains_of["b"] == (RequiredDomain("spine", "ab"),)
    assert group.domains_of["round"] == (RequiredDomain(""),)


def test_a_pod_gang_of_grove_has_domains_of_all_of_groups_and_of_each() -> None:
    def packed(level: str) -> dict[str, object]:
        return {"topologyConstraint": {"packConstraint": {"required": level, "preferred": HOST}}}

    spec = {
        "podgroups": [{"name": "p", "minReplicas": 1, **packed(RACK)}, {"name": "d", "minReplicas": 2}],
        "topologyConstraintGroupConfigs": [{"name": "s", "podGroupNames": ["p", "d"], **packed("spine")}],
        **packed("zone"),
    }
    value = {"kind": "PodGang", "metadata": {"name": "g", "namespace": "default"}, "spec": spec}
    group = JobManifest.from_value(value).record()
    assert (group.minimum, group.domains) == (3, (RequiredDomain("zone"),))
    spine = RequiredDomain("spine", "groups s")
    assert group.domains_of == {"p": (spine, RequiredDomain(RACK, "p")), "d": (spine,)}


def test_so_many_levels_are_read_and_one_more_is_met_by_no_node() -> None:
    for count, known in (GANG_LEVELS, True), (GANG_LEVELS + 1, False):
        keys = [{"key": f"level-{number}"} for number in range(count)]
        spec = {"schedulingPolicy": {"gang": {"minCount": 1}}, "schedulingConstraints": {"topology": keys}}
        group = pod_group(spec, "scheduling.k8s.io/v1beta1")
        pod = make_pod("w", 8, pod_group="g")
        node = make_node("n", labels={f"level-{number}": "x" for number in range(count)})
        state = checked(node, pod)
        state.apply([Upserted(group)])
        assert fits(state, pod) == (["n"] if known else [])


def test_evictions_make_room_in_one_domain() -> None:
    pods = gang(2, KUEUE, priority=10)
    holding = [make_pod(f"x-{node}", 8, node_name=node) for node in ("a0", "b0", "b1", "c0")]
    state = checked(*racks(a=2, b=2, c=1), *holding, *pods)
    assert fits(state, pods[0]) == ["a1"]
    plans = plan_evictions(state, pods[0], sorted(state.nodes), NOW)
    assert [plan.node for plan in plans] == ["a0"]
    state.reservations.reserve(pods[0].uid, Reserved.NOMINATING, "a0")
    assert fits(state, pods[1]) == ["a1"]


async def test_the_evictor_plans_for_all_members_in_one_domain() -> None:
    pods = gang(2, KUEUE, priority=10)
    nodes = racks(a=1, b=2, c=1)
    holding = [make_pod(f"x-{node.name}", 8, node_name=node.name) for node in nodes]
    state = checked(*nodes, *holding, *pods)
    plans = plan_evictions(state, pods[0], sorted(state.nodes), NOW)
    assert sorted(plan.node for plan in plans) == ["b0", "b1"]
    planner = Planner(state, Asked(Schedulers(), lambda uid: []), lambda: NOW)
    assert await planner.gang_fits(pods[0], plans[0])
    state.apply([Deleted("Node", "b1")])
    assert not plan_evictions(state, pods[0], sorted(state.nodes), NOW)


class World:
    """Racks, a gang, and pods of others, as kube-scheduler and the controller of the gang change them."""

    def __init__(self, sizes: Sequence[int], count: int, annotations: dict[str, str]) -> None:
        names = dict(zip("abcd", sizes, strict=False))
        self.count, self.rack_of = count, {node.name: node.labels[RACK] for node in racks(**names)}
        self.pods = dict(enumerate(gang(count, annotations)))
        self.annotations, self.made = annotations, 0
        self.state = checked(*racks(**names), make_node("bare"), *self.pods.values())
        self.now = 0.0
        self.state.reservations.clock = lambda: self.now
        self.underway: dict[int, str] = {}
        self.others: list[Pod] = []

    def schedule(self, number: int, choice: int) -> None:
        """kube-scheduler asks and binds to any of the nodes; the watch shows it later."""
        pod = self.pods[number]
        if pod.node_name or number in self.underway:
            return
        if nodes := [node for node in fits(self.state, pod) if not self.is_taken(node)]:
            self.underway[number] = nodes[choice % len(nodes)]
            self.state.reservations.answered(pod, self.underway[number])

    def is_taken(self, node: str) -> bool:
        """kube-scheduler itself does not forget what it has assumed."""
        return node in self.underway.values()

    def show(self, number: int) -> None:
        if node := self.underway.pop(number, ""):
            self.pods[number] = replace(self.pods[number], node_name=node, phase="Running")
            self.state.apply([Upserted(self.pods[number])])

    def kill(self, number: int) -> None:
        """The pod ends, and its controller creates another one."""
        self.underway.pop(number, "")
        self.made += 1
        new = member(number, self.count, self.annotations, uid=f"u{self.made}")
        self.state.apply([Deleted("Pod", self.pods[number].key), Upserted(new)])
        self.pods[number] = new

    def other(self, choice: int) -> None:
        """Another pod takes a node, or the last one ends."""
        node = sorted(self.rack_of)[choice % len(self.rack_of)]
        holds = {pod.node_name for pod in (*self.pods.values(), *self.others)}
        if node not in holds and not self.is_taken(node):
            self.made += 1
            self.others.append(make_pod(f"other-{self.made}", 8, node_name=node))
            self.state.apply([Upserted(self.others[-1])])
        elif self.others:
            self.state.apply([Deleted("Pod", self.others.pop().key)])

    @property
    def used(self) -> dict[int, str]:
        """The racks of the members that run, or that are bound."""
        nodes = {number: pod.node_name for number, pod in self.pods.items() if pod.node_name} | self.underway
        return {number: self.rack_of.get(node, "") for number, node in nodes.items()}

    def room(self) -> int:
        """Nodes that are free in the rack with the most."""
        holds = {pod.node_name for pod in (*self.pods.values(), *self.others)}
        free = [rack for node, rack in self.rack_of.items() if node not in holds]
        return max(map(free.count, free), default=0)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["schedule", "schedule", "show", "kill", "other"]), st.integers(0, 11)),
    max_size=40,
)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4), ACTIONS, st.booleans())
@settings(max_examples=examples(100))
def test_members_share_one_domain_in_every_order(
    sizes: list[int], count: int, actions: list[tuple[str, int]], in_slices: bool
) -> None:
    annotations = KUEUE
    if in_slices:
        level, size = "kai.scheduler/segment-topology-required-placement", "kai.scheduler/segment-size"
        annotations = {level: RACK, size: "2"}
    world = World(sizes, count, annotations)
    assert bool(fits(world.state, world.pods[0])) == (
        sum(size // 2 for size in sizes) * 2 + (sum(size % 2 for size in sizes) > 0) >= count
        if in_slices
        else max(sizes) >= count
    )
    for action, choice in actions:
        number = choice % count
        match action:
            case "schedule":
                is_first, room = not world.used, world.room()
                world.schedule(number, choice)
                assert in_slices or not is_first or bool(world.used) == (room >= count)
            case "show":
                world.show(number)
            case "kill":
                world.kill(number)
            case _:
                world.other(choice)
        groups = {number // 2 for number in world.used} if in_slices else {0}
        for part in groups:
            of_part = {rack for n, rack in world.used.items() if not in_slices or n // 2 == part}
            assert len(of_part) <= 1
            assert "" not in of_part
        world.now += 1.0


def test_a_bounded_number_of_domains_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where unlike members hide from the counts of a rack that they do not all fit."""
    specs = [make_pod("x", 8, cpu=cpu).spec for cpu in ("60", "30", "30")]
    pods = [replace(pod, spec=spec) for pod, spec in zip(gang(3, KUEUE), specs, strict=True)]
    pods = [replace(pod, spec=replace(pod.spec, node_selector=(("pool", "x"),))) for pod in pods]
    outside = racks(a=3, b=3)
    inside = [replace(node, labels=node.labels | {"pool": "x"}) for node in racks(c=3)]
    assert fits(checked(*outside, *inside, *pods), pods[0]) == ["c0", "c1", "c2"]
    monkeypatch.setattr(gang_domains, "GANG_DOMAINS", 2)
    assert fits(checked(*outside, *inside, *pods), pods[0]) == []
