"""``POST /debug/explain``: where a pod of a manifest would fit, and why not elsewhere."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from extender.explain.words import Word
from extender.k8s.affinity import Taint
from extender.k8s.node_filter import Rule
from extender.k8s.objects import Deleted, Node, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import PROBLEM, SELECTOR_ITEMS
from tests.contract.conftest import GPU, Start, manifest
from tests.contract.test_debug import CLUSTER, get
from tests.extender.builders import make_node
from tests.extender.dra.nvidia import gpu, spec
from tests.extender.dra.records import parse_claim, parse_class, parse_slice

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
    assert as_yaml["passed_over"] == {"node selector does not match: zone=west": 3}
    assert as_yaml["best"][0]["score"] == 10
    assert (await get(stowage, "/debug/pods/default/what-if", 404)) is not None


async def test_explain_says_what_is_wrong_with_a_manifest(start: Start) -> None:
    stowage = await start(*CLUSTER)
    for body, status, text in (
        (b"{", 400, "is not JSON"),
        (b"a: [", 400, "is not YAML"),
        (b"", 400, "is empty"),
        (b"\xff", 400, "can't decode"),
        (b"kind: Node\nmetadata: {name: a}", 400, "has no pod and no pod template"),
        (b"kind: Pod\nmetadata: {name: a}\nspec: 3", 400, "spec"),
        (
            b"kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name: b}",
            400,
            "has 2 pods or pod templates",
        ),
        (b" " * ((1 << 20) + 1), 413, "larger than 1 MiB"),
    ):
        response = await stowage.http.post("/debug/explain", content=body)
        assert response.status_code == status, text
        assert text in response.json()["detail"]


async def test_a_hostile_manifest_is_a_short_error(start: Start) -> None:
    stowage = await start(*CLUSTER)
    for body in (
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
    ):
        response = await stowage.http.post("/debug/explain", content=body)
        assert response.status_code == 400, body[:30]
        assert len(response.json()["detail"]) <= PROBLEM, body[:30]


MODELS = ",".join(f"m{number}" for number in range(9999))
PROFILES = {f"nvidia.com/mig-{number}g.{'1' * 200}gb": 1 for number in range(1500)}


async def test_an_explanation_is_short_whatever_the_pod_holds(start: Start) -> None:
    stowage = await start(*CLUSTER)
    for pod in (
        manifest("n" * 100_000, kind="Pod"),
        manifest(gpus="9" * 200_000, kind="Pod"),
        manifest(kind="Pod", metadata={"name": "a", "annotations": {"stowage.dev/nvlink": "x" * 200_000}}),
        manifest(kind="Pod", metadata={"name": "a", "annotations": {"stowage.dev/gpu-models": MODELS}}),
        manifest(kind="Pod", spec={"containers": [{"resources": {"limits": PROFILES}}]}),
    ):
        response = await stowage.http.post("/debug/explain", json=pod)
        assert response.status_code in (200, 400)
        assert len(response.content) < 100_000
        assert len(response.json().get("error", "")) <= PROBLEM


TAINT = f"{Rule.NOT_TOLERATED}: team=a:NoSchedule"
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


def pod_with(**spec: Any) -> dict[str, Any]:
    pod = manifest("what-if", 4, kind="Pod")
    return pod | {"spec": pod["spec"] | spec}


@pytest.mark.parametrize(
    ("spec", "passed_over"),
    [
        ({}, {TAINT: 1}),
        ({"tolerations": [{"key": "team", "operator": "Exists"}]}, {}),
        ({"tolerations": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}, {TAINT: 1}),
        ({"affinity": AFFINITY}, {"node affinity does not match: zone In west": 4}),
        ({"nodeSelector": {"zone": "west"}}, {"node selector does not match: zone=west": 4}),
    ],
)
async def test_explain_follows_the_rules_that_kube_scheduler_checks_itself(
    start: Start, spec: dict[str, Any], passed_over: dict[str, int]
) -> None:
    stowage = await start(*CLUSTER, make_node("west", 4, labels={"zone": "west"}), TAINTED)
    pod = pod_with(**spec)
    answer = (await stowage.http.post("/debug/explain", json=pod)).json()
    assert answer["passed_over"] == passed_over
    assert answer["nodes"] == 5 - sum(passed_over.values())
    assert "tainted" not in {option["node"] for option in answer["best"]} or not passed_over
    pod["metadata"] = {"name": "waits", "namespace": "default", "uid": "waits"}
    waiting = PodManifest.from_value(pod).record()
    stowage.service.engine.apply([Upserted(waiting)])  # as the watch delivers it
    assert (await get(stowage, "/debug/pods/default/waits"))["now"]["passed_over"] == passed_over


async def test_rules_that_are_too_large_admit_no_node_and_say_so(start: Start) -> None:
    stowage = await start(*CLUSTER)
    [term] = AFFINITY["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    values = [str(number) for number in range(SELECTOR_ITEMS + 1)]
    large = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, large]}}
    pod = pod_with(affinity={"nodeAffinity": required})
    answer = (await stowage.http.post("/debug/explain", json=pod)).json()
    assert (answer["nodes"], answer["fits"]) == (0, 0)
    assert answer["passed_over"] == {"node affinity is too large to be read": 3}


async def test_long_rules_let_other_tasks_run(start: Start) -> None:
    stowage = await start(*(make_node(f"n{i:04}") for i in range(1000)))
    tolerations = [{"key": f"k{number}", "value": "v"} for number in range(SELECTOR_ITEMS)]
    body = pod_with(tolerations=tolerations, affinity=AFFINITY)
    explaining = asyncio.create_task(stowage.http.post("/debug/explain", json=body))
    turns = 0
    while not explaining.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await explaining).json()["passed_over"] == {"node affinity does not match: zone In west": 1000}
    assert turns >= 1000 // 100


async def test_a_node_that_goes_while_others_are_compared_does_no_harm(start: Start) -> None:
    stowage = await start(*(make_node(f"n{i:04}") for i in range(200)))
    explaining = asyncio.create_task(stowage.http.post("/debug/explain", json=pod_with()))
    for _ in range(4):
        await asyncio.sleep(0)
    stowage.service.engine.apply([Deleted("Node", f"n{i:04}") for i in range(150)])
    answer = (await explaining).json()
    assert answer["fits"] == 50


async def test_a_claim_that_no_node_can_satisfy_fits_nowhere(start: Start) -> None:
    stowage = await start(make_node("a"), make_node("b"))
    objects = [parse_class("gpu", {}), parse_slice("s", spec(gpu(0), gpu(1), node="a"))]
    for name, count in (("many", {"count": 16}), ("few", {})):
        request = {"name": "r", "exactly": {"deviceClassName": "gpu", **count}}
        objects.append(parse_claim("default", name, {"devices": {"requests": [request]}}, None))
    stowage.service.engine.apply([Upserted(obj) for obj in objects])
    pod = manifest("what-if", 0, kind="Pod")
    answers = {}
    for name in ("many", "few"):
        claims = [{"name": "c", "resourceClaimName": name}]
        body = pod | {"spec": pod["spec"] | {"resourceClaims": claims}}
        answers[name] = (await stowage.http.post("/debug/explain", json=body)).json()
        assert json.loads(await stowage.filter(body, ["a", "b"]))["NodeNames"] == ["a", "b"]
    assert (answers["many"]["nodes"], answers["many"]["fits"]) == (2, 0)
    assert [(one["reason"], one["nodes"]) for one in answers["many"]["refusals"]] == [
        (str(Word.NO_DEVICES()), 2)
    ]
    assert (answers["few"]["fits"], answers["few"]["best"][0]["devices"]) == (1, ["gpu.nvidia.com/a/gpu-0"])


async def test_a_request_that_can_not_be_met_is_explained_too(start: Start) -> None:
    stowage = await start(*CLUSTER)
    response = await stowage.http.post("/debug/explain", json=manifest(gpus=-1, kind="Pod"))
    assert GPU in response.json()["error"]
