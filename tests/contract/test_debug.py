"""The debug endpoint: what is free, who holds what, what was decided and why, and what would be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from extender.explain.pod import NO_DEVICES
from extender.k8s.manifests import WirePod
from extender.k8s.objects import Deleted, Node, Upserted
from extender.k8s.resource_api.claim_parser import parse_claim
from extender.k8s.resource_api.slice_parser import parse_class, parse_slice
from extender.k8s.scheduling_rules import NOT_TOLERATED as TAINT
from extender.k8s.taints import Taint
from extender.untrusted.limits import KEY, PROBLEM, SELECTOR_ITEMS
from packing.model.reasons import Reason
from tests.contract.conftest import GPU, Start, Stowage, manifest
from tests.extender.builders import make_node, make_pod
from tests.extender.dra.nvidia import gpu, spec

CLUSTER = (
    make_node("a", 8),
    make_node("b", 8),
    make_node("mig", 0, **{"nvidia.com/mig-1g.10gb": "7"}),
    make_pod("holds", 6, node_name="b"),
    make_pod("slice", 2, resource="nvidia.com/mig-1g.10gb", node_name="mig"),
)


async def get(stowage: Stowage, path: str, status: int = 200) -> Any:
    response = await stowage.http.get(path)
    assert response.status_code == status, response.text
    return response.json()


async def test_nodes_show_what_is_free_and_who_holds_what(start: Start) -> None:
    stowage = await start(*CLUSTER)
    nodes = {node["name"]: node for node in (await get(stowage, "/debug/nodes"))["nodes"]}
    assert list(nodes) == ["a", "b", "mig"]
    assert nodes["b"] == await get(stowage, "/debug/nodes/b")
    assert [gpu["free_compute_milli"] for gpu in nodes["b"]["gpus"]] == [0] * 6 + [1000] * 2
    assert nodes["b"]["free_cpu_milli"] == 63_000
    assert nodes["b"]["read_from"]["truth"] == "counts"
    assert nodes["b"]["holders"] == [
        {
            "pod": "default/holds",
            "cpu_milli": 1000,
            "memory_mib": 1024,
            "devices": {GPU: 6},
            "gpus": [],
            "device_ids": [],
            "known": "counts",
            "assumed_seconds": None,
        }
    ]


async def test_mig_instances_are_shown_as_slices_of_their_gpu(start: Start) -> None:
    stowage = await start(*CLUSTER)
    node = await get(stowage, "/debug/nodes/mig")
    [pool] = node["pools"]
    assert (pool["resource"], pool["free"], pool["total"]) == ("nvidia.com/mig-1g.10gb", 5, 7)
    assert pool["compute_milli"] == 142
    assert node["gpus"][0]["free_compute_milli"] == 1000 - 2 * 142


async def test_a_device_that_kubelet_reports_is_a_known_placement(start: Start) -> None:
    stowage = await start(make_node("a"), make_pod("p", 1, node_name="a", devices=((GPU, "GPU-1234"),)))
    [holder] = (await get(stowage, "/debug/nodes/a"))["holders"]
    assert (holder["device_ids"], holder["known"]) == (["GPU-1234"], "placement")


async def test_a_node_that_takes_nothing_says_why(start: Start) -> None:
    stowage = await start(
        make_node("full", 1),
        make_pod("one", 1, node_name="full"),
        make_pod("two", 1, node_name="full"),
        make_node("broken", **{GPU: "x"}),
        make_node("changing", labels={"nvidia.com/mig.config.state": "pending"}),
    )
    closed = {node["name"]: node["takes_nothing"] for node in (await get(stowage, "/debug/nodes"))["nodes"]}
    assert closed == {
        "full": Reason.OVERCOMMITTED.text,
        "broken": Reason.UNREADABLE.text,
        "changing": Reason.REPARTITIONING.text,
    }
    assert "node takes nothing" in (await get(stowage, "/debug/nodes/broken"))["problem"]


async def test_the_last_decisions_about_a_pod(start: Start) -> None:
    stowage = await start(*CLUSTER, bind=True)
    pod = manifest("new", 4)
    await stowage.filter(pod, ["a", "b", "mig", "gone"])
    await stowage.prioritize(pod, ["a"])
    story = await get(stowage, "/debug/pods/default/new")
    assert [decision["verb"] for decision in story["decisions"]] == ["prioritize", "filter"]
    scored, filtered = story["decisions"]
    assert scored["explanation"]["best"][0]["score"] == 10
    assert filtered["answer"] == "1 of 4 nodes fit"
    explanation = filtered["explanation"]
    assert (explanation["nodes"], explanation["fits"]) == (4, 1)
    [option] = explanation["best"]
    assert option["node"] == "a"
    assert sum(option["terms"].values()) == pytest.approx(option["cost"], abs=1)  # up to rounding
    refusals = {one["reason"]: one for one in explanation["refusals"]}
    assert refusals[Reason.NO_FREE_GPUS.text] == {
        "reason": Reason.NO_FREE_GPUS.text,
        "nodes": 1,
        "eviction_helps": True,
        "nearest": "b",
        "lacks": [{"what": GPU, "asked": 4, "free": 2, "total": 8}],
    }
    assert refusals[Reason.UNKNOWN_NODE.text]["nearest"] == "gone"
    await stowage.bind(pod, "a")
    story = await get(stowage, "/debug/pods/default/new")
    assert story["node"] == "a"
    assert story["decisions"][0]["answer"] == "bound to a"
    assert story["now"] is None


async def test_numbers_are_those_of_the_decision(start: Start) -> None:
    stowage = await start(
        make_node("a", 4), make_pod("holds", 3, node_name="a"), make_pod("more", 1), bind=True
    )
    await stowage.filter(manifest("new", 2), ["a"])
    await stowage.bind(manifest("more"), "a")
    story = await get(stowage, "/debug/pods/default/new")
    then = story["decisions"][0]["explanation"]["refusals"][0]["lacks"]
    now = story["now"]["refusals"][0]["lacks"]
    assert [then[0]["free"], now[0]["free"]] == [1, 0]


async def test_a_pod_that_was_never_asked_about_is_answered_live(start: Start) -> None:
    stowage = await start(*CLUSTER, make_pod("waits", 9))
    story = await get(stowage, "/debug/pods/default/waits")
    assert story["decisions"] == []
    assert "has not asked about this pod" in story["note"]
    assert story["now"]["fits"] == 0
    assert {one["reason"] for one in story["now"]["refusals"]} == {
        Reason.TOO_FEW_GPUS.text,
        Reason.NO_SUCH_RESOURCE.text,
    }


async def test_a_pod_that_is_made_anew_has_no_past(start: Start) -> None:
    stowage = await start(*CLUSTER)
    await stowage.filter(manifest("new"), ["a"])
    await stowage.prioritize(
        manifest("new", metadata={"name": "new", "namespace": "default", "uid": "2"}), ["a"]
    )
    story = await get(stowage, "/debug/pods/default/new")
    assert [decision["verb"] for decision in story["decisions"]] == ["prioritize"]


async def test_decisions_about_a_pod_of_the_same_name_are_not_told(start: Start) -> None:
    stowage = await start(*CLUSTER, make_pod("new", 9, uid="2"))
    await stowage.filter(manifest("new", metadata={"name": "new", "namespace": "default", "uid": "1"}), ["a"])
    story = await get(stowage, "/debug/pods/default/new")
    assert story["decisions"] == []
    assert "has not asked about this pod" in story["note"]


@pytest.mark.parametrize("kept", [0, 2])
async def test_only_so_many_pods_are_remembered(start: Start, kept: int) -> None:
    stowage = await start(*CLUSTER, decisions_kept=kept)
    for name in ("one", "two", "three"):
        await stowage.filter(manifest(name), ["a"])
    known = [await stowage.http.get(f"/debug/pods/default/{name}") for name in ("one", "two", "three")]
    assert [response.status_code for response in known] == [404] * (3 - kept) + [200] * kept


async def test_what_is_not_known_is_404(start: Start) -> None:
    stowage = await start(*CLUSTER)
    assert (await get(stowage, "/debug/nodes/gone", 404))["detail"] == "node gone is not known"
    assert (await get(stowage, "/debug/pods/a/b", 404))["detail"] == "pod a/b is not known"


@pytest.mark.parametrize("path", ["nodes", "nodes/a", "pods/a/b"])
async def test_before_it_is_ready_it_says_so(start: Start, path: str) -> None:
    stowage = await start(*CLUSTER, ready=False)
    assert (await get(stowage, f"/debug/{path}", 503))["detail"] == "not ready: kernels are being compiled"


YAML = """
apiVersion: v1
kind: Pod
metadata: {name: what-if, namespace: team, creationTimestamp: 2026-01-02T03:04:05Z}
spec:
  nodeSelector: {zone: west}
  containers: [{name: main, resources: {limits: {nvidia.com/gpu: 4}}}]
"""


async def test_explain_takes_json_and_yaml_and_changes_nothing(start: Start) -> None:
    west = make_node("west", labels={"zone": "west"})
    stowage = await start(*CLUSTER, west)
    pod = manifest("what-if", 4, kind="Pod", apiVersion="v1")
    as_json = (await stowage.http.post("/debug/explain", json=pod)).json()
    as_yaml = (await stowage.http.post("/debug/explain", content=YAML)).json()
    assert (as_json["pod"], as_json["nodes"], as_json["fits"]) == ("default/what-if", 4, 2)
    assert (as_yaml["pod"], as_yaml["nodes"], as_yaml["fits"]) == ("team/what-if", 1, 1)
    assert as_yaml["passed_over"] == {"node selector does not match": 3}
    assert as_yaml["best"][0]["score"] == 10
    assert (await get(stowage, "/debug/pods/default/what-if", 404)) is not None


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{", 400, "is not JSON"),
        (b"a: [", 400, "is not YAML"),
        (b"", 400, "is empty"),
        (b"\xff", 400, "can't decode"),
        (b"kind: Node\nmetadata: {name: a}", 400, "holds 0 pods"),
        (b"kind: Pod\nmetadata: {name: a}\nspec: 3", 400, "spec"),
        (b"kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name: b}", 400, "holds 2 pods"),
        (b" " * ((1 << 20) + 1), 413, "larger than 1 MiB"),
    ],
)
async def test_explain_says_what_is_wrong_with_a_manifest(
    start: Start, body: bytes, status: int, text: str
) -> None:
    stowage = await start(*CLUSTER)
    response = await stowage.http.post("/debug/explain", content=body)
    assert response.status_code == status
    assert text in response.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        "a: " + "[" * 60_000,
        "[" * 1_000_000,
        '{"kind": "Pod", "metadata": ' + '{"a":' * 200_000,
        "a0: &a0 [x,x,x,x,x,x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 60}]\n" for n in range(1, 60)),
        "".join(f"%TAG !a{n}! x\n" for n in range(60_000)) + "--- a",
        "kind: Pod\nmetadata: {name: a}\nspec: [" + "a," * 400_000 + "]",
        "kind: Pod\nmetadata: {name: " + "n" * 200_000 + "}\nspec: " + "s" * 200_000,
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{resources: {limits: {"
        + "k" * 200_000
        + ": []}}}]}",
        "!" + "t" * 200_000 + " x",
        "'" + "\n" * 500_000,
        '{"kind": "Pod", "' + "k" * 200_000 + '": }',
    ],
    ids=lambda body: body[:30],
)
async def test_a_hostile_manifest_is_a_short_error(start: Start, body: str) -> None:
    stowage = await start(*CLUSTER)
    response = await stowage.http.post("/debug/explain", content=body)
    assert response.status_code == 400
    assert len(response.json()["detail"]) <= PROBLEM


@pytest.mark.parametrize(
    "pod",
    [
        manifest("n" * 100_000, kind="Pod"),
        manifest(gpus="9" * 200_000, kind="Pod"),
        manifest(kind="Pod", metadata={"name": "a", "annotations": {"stowage.dev/nvlink": "x" * 200_000}}),
        manifest(
            kind="Pod",
            metadata={
                "name": "a",
                "annotations": {"stowage.dev/gpu-models": ",".join(f"m{i}" for i in range(9999))},
            },
        ),
        manifest(
            kind="Pod",
            spec={
                "containers": [
                    {"resources": {"limits": {f"nvidia.com/mig-{i}g.{'1' * 200}gb": 1 for i in range(1500)}}}
                ]
            },
        ),
    ],
    ids=["name", "quantity", "annotation", "models", "resources"],
)
async def test_an_explanation_is_short_whatever_the_pod_holds(start: Start, pod: dict[str, Any]) -> None:
    stowage = await start(*CLUSTER)
    response = await stowage.http.post("/debug/explain", json=pod)
    assert response.status_code in (200, 400)
    assert len(response.content) < 100_000
    assert len(response.json().get("error", "")) <= PROBLEM


async def test_a_path_is_not_echoed_at_length(start: Start) -> None:
    stowage = await start(*CLUSTER)
    for path in ("nodes/" + "n" * 30_000, f"pods/{'n' * 15_000}/{'p' * 15_000}"):
        assert len((await get(stowage, f"/debug/{path}", 404))["detail"]) <= KEY + 30


TAINTED = Node("tainted", allocatable={GPU: "8"}, taints=(Taint("team", "a", "NoSchedule"),))
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["west"]}]}
            ]
        }
    }
}


def ruled(**spec: Any) -> dict[str, Any]:
    pod = manifest("what-if", 4, kind="Pod")
    return pod | {"spec": pod["spec"] | spec}


@pytest.mark.parametrize(
    ("spec", "passed_over"),
    [
        ({}, {TAINT: 1}),
        ({"tolerations": [{"key": "team", "operator": "Exists"}]}, {}),
        ({"tolerations": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}, {TAINT: 1}),
        ({"affinity": AFFINITY}, {"node affinity does not match": 4}),
        ({"nodeSelector": {"zone": "west"}}, {"node selector does not match": 4}),
    ],
)
async def test_explain_follows_the_rules_that_kube_scheduler_checks_itself(
    start: Start, spec: dict[str, Any], passed_over: dict[str, int]
) -> None:
    stowage = await start(*CLUSTER, make_node("west", 4, labels={"zone": "west"}), TAINTED)
    pod = ruled(**spec)
    told = (await stowage.http.post("/debug/explain", json=pod)).json()
    assert told["passed_over"] == passed_over
    assert told["nodes"] == 5 - sum(passed_over.values())
    assert "tainted" not in {option["node"] for option in told["best"]} or not passed_over
    waiting = WirePod.model_validate(pod | {"metadata": {"name": "waits", "namespace": "default"}}).record()
    stowage.service.engine.apply([Upserted(waiting)])  # as the watch delivers it
    assert (await get(stowage, "/debug/pods/default/waits"))["now"]["passed_over"] == passed_over


async def test_rules_that_are_too_large_admit_no_node_and_say_so(start: Start) -> None:
    stowage = await start(*CLUSTER)
    [term] = AFFINITY["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    values = [str(number) for number in range(SELECTOR_ITEMS + 1)]
    large = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, large]}}
    told = (await stowage.http.post("/debug/explain", json=ruled(affinity={"nodeAffinity": required}))).json()
    assert (told["nodes"], told["fits"]) == (0, 0)
    assert told["passed_over"] == {"node affinity is too large to be read": 3}


async def test_long_rules_let_others_in_between(start: Start) -> None:
    stowage = await start(*(make_node(f"n{i:04}") for i in range(1000)))
    tolerations = [{"key": f"k{number}", "value": "v"} for number in range(SELECTOR_ITEMS)]
    body = ruled(tolerations=tolerations, affinity=AFFINITY)
    asking = asyncio.create_task(stowage.http.post("/debug/explain", json=body))
    turns = 0
    while not asking.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await asking).json()["passed_over"] == {"node affinity does not match": 1000}
    assert turns >= 1000 // 100


async def test_a_node_that_goes_while_others_are_compared_does_no_harm(start: Start) -> None:
    stowage = await start(*(make_node(f"n{i:04}") for i in range(200)))
    asking = asyncio.create_task(stowage.http.post("/debug/explain", json=ruled()))
    for _ in range(4):
        await asyncio.sleep(0)
    stowage.service.engine.apply([Deleted("Node", f"n{i:04}") for i in range(150)])
    told = (await asking).json()
    assert told["fits"] == 50


async def test_a_claim_that_no_node_can_satisfy_fits_nowhere(start: Start) -> None:
    stowage = await start(make_node("a"), make_node("b"))
    one = {"name": "r", "exactly": {"deviceClassName": "gpu", "count": 16}}
    stowage.service.engine.apply(
        [
            Upserted(parse_class("gpu", {})),
            Upserted(parse_slice("s", spec(gpu(0), gpu(1), node="a"))),
            Upserted(parse_claim("default", "many", {"devices": {"requests": [one]}}, None)),
            Upserted(
                parse_claim(
                    "default",
                    "few",
                    {"devices": {"requests": [one | {"exactly": {"deviceClassName": "gpu"}}]}},
                    None,
                )
            ),
        ]
    )
    pod = manifest("what-if", 0, kind="Pod")
    answers = {}
    for name in ("many", "few"):
        claims = [{"name": "c", "resourceClaimName": name}]
        body = pod | {"spec": pod["spec"] | {"resourceClaims": claims}}
        answers[name] = (await stowage.http.post("/debug/explain", json=body)).json()
        assert json.loads(await stowage.filter(body, ["a", "b"]))["NodeNames"] == ["a", "b"]
    assert (answers["many"]["nodes"], answers["many"]["fits"]) == (2, 0)
    assert [(one["reason"], one["nodes"]) for one in answers["many"]["refusals"]] == [(NO_DEVICES, 2)]
    assert (answers["few"]["fits"], answers["few"]["best"][0]["devices"]) == (1, ["gpu.nvidia.com/a/gpu-0"])


async def test_a_request_that_can_not_be_met_is_explained_too(start: Start) -> None:
    stowage = await start(*CLUSTER)
    response = await stowage.http.post("/debug/explain", json=manifest(gpus=-1, kind="Pod"))
    assert GPU in response.json()["error"]


async def test_a_long_list_lets_others_in_between(start: Start) -> None:
    stowage = await start(*(make_node(f"n{i:04}") for i in range(500)))
    listing = asyncio.create_task(stowage.http.get("/debug/nodes"))
    turns = 0
    while not listing.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(json.loads((await listing).content)["nodes"]) == 500
    assert turns >= 500 // 20
