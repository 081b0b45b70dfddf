"""Pods with resource claims, through the state and the verbs."""

from __future__ import annotations

import asyncio
import json

import pytest
import yaml

from extender.dra.forecast import Forecast
from extender.explain.node import view_node
from extender.explain.pod import explain
from extender.k8s.objects import Deleted, PodClaim, PodSpec, Upserted
from extender.protocol.codec import FilterArgs, PreemptArgs, ProposedVictims
from extender.protocol.node_names import NodeNames
from extender.source.workloads import parse_pod
from extender.untrusted.limits import PROBLEM
from extender.verbs.filter import filter_nodes
from extender.verbs.preempt import preempt
from extender.verbs.prioritize import prioritize
from tests.extender.builders import NOW, make_node, make_pod, make_settings, make_state
from tests.extender.dra.nvidia import CLASSES, counter_set, dynamic, gpu, spec
from tests.extender.dra.records import parse_claim, parse_class, parse_slice
from tests.extender.engines import SYNCED, make_engine, nodes_for

SMALL = "device.attributes['gpu.nvidia.com'].profile == '1g.5gb'"
NAMES = ["empty", "used"]


def wish(*selectors: str) -> dict:
    cel = [{"cel": {"expression": selector}} for selector in selectors]
    return {"requests": [{"name": "r", "exactly": {"deviceClassName": "mig", "selectors": cel}}]}


def claiming(name: str, gpus: int = 0, claim: str = "wanted", **more):
    pod = make_pod(name, gpus, **more)
    containers = pod.spec.containers
    return make_pod(name, gpus, spec=PodSpec(containers, claims=(PodClaim("c", claim),)), **more)


@pytest.fixture
def state():
    """Two nodes with one GPU each that is divided on demand, beside two others of a device plugin; a small
    part of the second node's is allocated."""
    both = {"nvidia.com/gpu.count": "4"}
    made = make_state(*(make_node(name, 2, labels=both) for name in NAMES))
    held = {"driver": "gpu.nvidia.com", "pool": "used", "device": "gpu-0-mig-1g5gb-19-0"}
    status = {
        "allocation": {"devices": {"results": [held]}},
        "reservedFor": [{"resource": "pods", "name": "user", "uid": "1"}],
    }
    only = "device.attributes['gpu.nvidia.com'].type == 'mig'"
    records = [parse_class("mig", {"selectors": [{"cel": {"expression": only}}]})]
    for name in NAMES:
        records.append(parse_slice(f"{name}-0", spec(*dynamic(), count=2, node=name)))
        records.append(parse_slice(f"{name}-1", spec(count=2, node=name, sharedCounters=[counter_set()])))
    records.append(parse_claim("default", "held", {"devices": wish()}, status))
    records.append(parse_claim("default", "wanted", {"devices": wish(SMALL)}, None))
    records.append(parse_claim("default", "odd", {"devices": wish("dyn(true)")}, None))
    made.apply([Upserted(record) for record in records])
    return made


def scores(state, pod, names=NAMES):
    return prioritize(state, FilterArgs(pod, NodeNames.of(names)))[0].tolist()


def left(state, pod, names, shortlist=1):
    result, _ = filter_nodes(state, FilterArgs(pod, NodeNames.of(names)), make_settings(shortlist=shortlist))
    return list(result.names)


def test_a_forecast_that_fails_refuses_no_node_and_leaves_none_out(state, monkeypatch, caplog):
    def fail(*args):
        raise RuntimeError("injected")

    monkeypatch.setattr(state.simulator, "forecasts", fail)
    for _ in range(2):
        assert left(state, claiming("p"), [*NAMES, "nowhere"]) == [*NAMES, "nowhere"]
        assert left(state, claiming("p", 1), NAMES) == NAMES
        assert scores(state, claiming("p")) == [0, 0]
        assert explain(state, claiming("p")).unknown == {"the forecast failed, see the log of Stowage": 2}
    assert state.failures.counts == {"forecast": 6}
    assert caplog.text.count("forecast failed") == 1


def test_scores_are_0_without_a_forecast(state):
    assert scores(state, claiming("p", claim="odd")) == [0, 0]
    assert scores(state, claiming("p", claim="unknown")) == [0, 0]
    assert scores(state, claiming("p", claim="held")) == [0, 0]


def test_many_different_reasons_why_nothing_is_known_stay_a_short_list(state, monkeypatch):
    names = [f"n{i}" for i in range(40)]
    forecasts = [Forecast(problem=f"{name} {'x' * 1000}") for name in names]
    monkeypatch.setattr(state.simulator, "forecasts", lambda *args: forecasts)
    state.apply([Deleted("Node", name) for name in NAMES])
    state.apply([Upserted(make_node(name)) for name in names])
    told = explain(state, claiming("p"))
    assert sum(told.unknown.values()) == told.nodes == 40
    assert told.unknown["other reasons"] == 20
    assert max(map(len, told.unknown)) <= PROBLEM


def test_preemption_for_a_claim_is_left_to_kube_scheduler(state):
    state.apply([Upserted(make_pod("victim", 0, node_name="used", uid="v"))])
    arguments = PreemptArgs(claiming("p"), {"used": ProposedVictims(["v"], 0)})
    assert preempt(state, arguments, NOW).candidates.keys() == {"used"}


def test_devices_of_a_node_are_shown_with_their_holders(state):
    view = view_node(state, "used", now=0.0)
    assert view is not None
    shown = {device.device.rpartition("/")[2]: device for device in view.devices}
    assert shown["gpu-0-mig-1g5gb-19-0"].pods == ("default/user",)
    assert shown["gpu-0-mig-1g5gb-19-0"].claims == ("default/held",)
    assert not shown["gpu-0-mig-1g5gb-19-0"].free
    assert not shown["gpu-0"].free
    assert shown["gpu-0-mig-3g20gb-9-4"].free
    assert not view_node(make_state(make_node("plain")), "plain", now=0.0).devices


def test_a_bad_pool_is_among_the_problems(state):
    state.apply([Upserted(parse_slice("bad", spec(*dynamic(), node="third")))])
    assert "counter set" in state.problems["pool third of gpu.nvidia.com"]


def test_the_first_alternative_outweighs_waste(state):
    """A small part would waste nothing on the second node, and the whole GPU is there on the first alone."""
    whole = "device.attributes['gpu.nvidia.com'].type == 'gpu'"
    options = [
        {"name": name, "deviceClassName": name, "selectors": [{"cel": {"expression": only}}]}
        for name, only in (("any", whole), ("mig", SMALL))
    ]
    devices = {"requests": [{"name": "r", "firstAvailable": options}]}
    claim = parse_claim("default", "ranked", {"devices": devices}, None)
    state.apply([Upserted(claim), Upserted(parse_class("any", {}))])
    assert scores(state, claiming("p", claim="ranked")) == [10, 0]
    first, second = explain(state, claiming("p", claim="ranked")).best
    assert "less wanted" not in first.terms
    assert second.terms["less wanted"] == 100


async def test_a_long_search_lets_others_be_answered_and_reaches_all_nodes():
    engine, names = make_engine(), [f"n{number}" for number in range(100)]
    nodes = [Upserted(make_node(name, 8)) for name in names]
    slices = [parse_slice(name, spec(*map(gpu, range(8)), node=name)) for name in names]
    classes = [parse_class(one["metadata"]["name"], one["spec"]) for one in yaml.safe_load(CLASSES)]
    claim = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8}}]}
    records = [*slices, *classes, parse_claim("default", "wanted", {"devices": claim}, None)]
    engine.apply([*SYNCED, *nodes, *map(Upserted, records)])
    engine.state.simulator.at_once = 1000  # a few nodes
    body = {"metadata": {"name": "p", "namespace": "default", "uid": "p"}}
    claims = [{"name": "c", "resourceClaimName": "wanted"}]
    body["spec"] = {"containers": [{"name": "main"}], "resourceClaims": claims}
    asked = json.dumps({"Pod": body, "Nodes": None, "NodeNames": names}).encode()
    answers = []

    async def ask(name: str) -> None:
        if name == "other":
            await nodes_for(engine, name, gpus=1, names=["n0"])
        else:
            answers.append(json.loads((await engine.verbs["prioritize"](asked))[0]))
        answers.append(name)

    await asyncio.gather(ask("claiming"), ask("other"))
    first, scores, last = answers
    assert (first, last) == ("other", "claiming")
    assert sum(one["Score"] > 0 for one in scores) > 90
    pod = parse_pod(json.dumps(body), "it")
    assert all(f.devices for f in engine.state.simulator.forecasts(pod, [(name, {}) for name in names]))
