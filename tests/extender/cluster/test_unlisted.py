"""A kind whose first list does not arrive counts as unknown, in the safe direction."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from extender.explain.pod import explain
from extender.k8s.objects import Kind, Listed, Unlisted, Upserted
from extender.k8s.resource_slices import DeviceTaintRuleKind
from extender.queues.rights import WhyNot
from extender.source.errors import Unavailable
from extender.source.watched_kinds import ALWAYS_AWAITED, UNKNOWN, WATCHED_KINDS
from tests.extender.apiserver import PATIENT, ApiServer, node, source_of
from tests.extender.apistore import Store
from tests.extender.builders import make_node, make_pod, make_state
from tests.extender.dra.claims import gpu_claim
from tests.extender.dra.nvidia import device_cache, forecast_for, gpu, names, spec
from tests.extender.engines import make_engine, victims_for


def unlisted(kind: Kind) -> Unlisted:
    return Unlisted(kind, f"{kind.lower()}s", "500 broken", UNKNOWN[kind])


def test_only_kinds_that_could_over_commit_are_awaited_without_end() -> None:
    assert {"Node", "Pod", "ResourceSlice", "ResourceClaim"} == ALWAYS_AWAITED
    assert WATCHED_KINDS.keys() - UNKNOWN.keys() == ALWAYS_AWAITED
    assert UNKNOWN.keys() - WATCHED_KINDS.keys() == {"ConfigMap"}


def test_every_effect_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text().replace("\n", " ")
    for effect in UNKNOWN.values():
        assert effect in page


@pytest.mark.parametrize("kind", ["PodDisruptionBudget", "PriorityClass"])
async def test_nothing_is_evicted_while_its_protection_is_unknown(kind: Any) -> None:
    engine = make_engine()
    victim = make_pod("running", 8, node_name="a")
    engine.apply([Upserted(make_node("a")), Upserted(victim)])
    engine.apply([Listed("Node", frozenset("a")), Listed("Pod", frozenset([victim.key]))])
    engine.apply([Listed(other, frozenset()) for other in WATCHED_KINDS.keys() - {"Node", "Pod", kind}])
    assert "are not listed yet" in engine.missing()
    engine.apply([unlisted(kind)])
    assert not engine.missing()
    assert await victims_for(engine, gpus=8) == {}
    assert engine.state.rights.rights_of(victim).forbidden_by == WhyNot.UNLISTED
    engine.apply([Listed(kind, frozenset())])
    assert await victims_for(engine, gpus=8) == {"a": ["uid-running"]}


@pytest.mark.parametrize("kind", ["DeviceClass", *get_args(DeviceTaintRuleKind)])
def test_no_devices_are_predicted_by_unknown_rules(kind: str) -> None:
    cache = device_cache(spec(gpu(0)))
    assert names(forecast_for(cache, gpu_claim())) == ["gpu-0"]
    cache.unlisted = {kind}
    for claim in (gpu_claim(), gpu_claim(deviceClassName="nobody.knows")):
        found = forecast_for(cache, claim)
        assert (found.devices, found.refused) == ((), False)
        assert found.problem == "device classes or DeviceTaintRules cannot be listed"
    cache.unlisted = set()
    assert names(forecast_for(cache, gpu_claim())) == ["gpu-0"]


def test_explain_names_a_few_kinds_for_pods_with_gpus() -> None:
    state = make_state(make_node("a"))
    assert not any("cannot be listed" in hint for hint in explain(state, make_pod("p")).hints)
    state.apply([unlisted(kind) for kind in UNKNOWN])
    hinted = [hint for hint in explain(state, make_pod("p")).hints if "cannot be listed" in hint]
    assert len(hinted) == 4
    assert hinted[0] == f"deviceclasss cannot be listed (500 broken): {UNKNOWN['DeviceClass']}."
    assert not any("cannot be listed" in hint for hint in explain(state, make_pod("p", 0)).hints)


def test_one_list_of_a_cluster_with_a_broken_kind(api: ApiServer, tmp_path: Path) -> None:
    api.put(node("a"))
    for kind, fault in (("JobSet", "500"), ("RayCluster", "garbage"), ("PriorityClass", "silent")):
        path = WATCHED_KINDS[kind].path
        api.stores[path], api.script[path] = Store(), type(api.script["/api/v1/nodes"])([fault] * 9)
    state = make_state(synced=False)
    for events in source_of(api, tmp_path, timeouts=PATIENT).list_once():
        state.apply(events)
    assert state.unlisted.keys() == {"JobSet", "RayCluster", "PriorityClass"}
    assert state.unlisted["JobSet"].why == "500 scripted"
    assert "not a list" in state.unlisted["RayCluster"].why


@pytest.mark.parametrize("kind", sorted(ALWAYS_AWAITED))
def test_one_list_without_a_kind_that_could_over_commit_is_an_error(
    api: ApiServer, tmp_path: Path, kind: Any
) -> None:
    watched = WATCHED_KINDS[kind]
    api.stores.setdefault(watched.path, Store())
    api.script[watched.path] = type(api.script["/api/v1/nodes"])(["500"] * 9)
    with pytest.raises(Unavailable, match=f"{watched.resource}: scripted|{watched.resource}: 500"):
        list(source_of(api, tmp_path, timeouts=PATIENT).list_once())
