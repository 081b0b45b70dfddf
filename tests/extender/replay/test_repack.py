"""A cluster packed again from empty: what moves, what stays, where it may go, and what is left as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extender.cli import main as cli
from extender.replay.report import snapshot_table
from extender.settings import Settings
from extender.source.errors import BadInput, Unavailable
from tests.extender.replay.snapshots import replay_snapshot

GPU = "nvidia.com/gpu"
NO_SETTINGS = Settings()


def node(name: str, gpus: int = 4, *, cpu: str = "32", labels: Any = None, **spec: Any) -> dict[str, Any]:
    allocatable = {"cpu": cpu, "memory": "256Gi"} | ({GPU: str(gpus)} if gpus else {})
    metadata = {"name": name, "labels": {"pool": "a"} | (labels or {})}
    return {"kind": "Node", "metadata": metadata, "spec": spec, "status": {"allocatable": allocatable}}


def pod(
    name: str,
    on: str,
    gpus: int = 1,
    *,
    cpu: str = "1",
    owner: str = "ReplicaSet",
    second: int = 0,
    **spec: Any,
) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
    metadata = {
        "name": name,
        "namespace": "ml",
        "uid": name,
        "ownerReferences": [{"kind": owner, "name": "x", "controller": True}],
    }
    containers = [{"name": "main", "resources": {"requests": requests, "limits": requests}}]
    status = {"phase": "Running", "startTime": f"2026-01-01T00:00:{second:02}Z"}
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": on, "containers": containers} | spec,
        "status": status,
    }


def affinity(*expressions: Any, fields: Any = ()) -> dict[str, Any]:
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    required = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.fixture
def replayed(tmp_path: Path):
    def run(
        *items: Any, policy: str = "best-fit", settings: Settings = NO_SETTINGS
    ) -> dict[str, dict[str, Any]]:
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps({"kind": "List", "items": items}))
        rows = list(replay_snapshot([path], [policy], settings, quiet))
        return {row["policy"]: row for row in rows}

    return run


def quiet(what: str, part: float) -> None:
    """No progress bar."""


def free(row: dict[str, Any]) -> tuple[int, int]:
    return row["whole_gpus_free"], row["whole_nodes_free"]


def test_pods_are_placed_in_the_order_in_which_they_started(replayed) -> None:
    nodes = node("n1", 4), node("n2", 2)
    small, large = pod("small", "n1", 2, second=1), pod("large", "n2", 4, second=2)
    assert replayed(*nodes, small, large)["best-fit"]["kept"] == {}  # the small one fills n2
    rows = replayed(*nodes, large, small, policy="least-allocated")  # whatever the order in the file
    assert rows["least-allocated"]["kept"] == {"ml/large": "not enough free GPUs"}


@pytest.mark.parametrize(
    "fixed",
    [
        {"gpus": 1, "owner": "DaemonSet"},
        {"gpus": 1, "owner": "Node"},
        {"gpus": 0, "cpu": "30"},
        {"gpus": 1, "resourceClaims": [{"name": "more", "resourceClaimName": "more"}]},
    ],
)
def test_what_cannot_move_keeps_what_it_has(replayed, fixed: dict[str, Any]) -> None:
    large = [pod(name, "n1", 4, cpu="4", second=second) for second, name in enumerate("ab", 1)]
    row = replayed(node("n1"), node("n2"), pod("fixed", "n2", **fixed), *large)["best-fit"]
    assert (row["pods"], "ml/b" in row["kept"]) == (2, True)


def test_a_full_node_of_volcano_is_not_over_committed(replayed, caplog: pytest.LogCaptureFixture) -> None:
    """No annotation of ours says which GPU such a pod has, so what the policy chose counts."""
    full = node("volcano", 0)
    full["metadata"]["annotations"] = {
        "volcano.sh/node-vgpu-register": "GPU-0,10,32768,V100,true:GPU-1,10,32768,V100,true:"
    }
    full["status"]["allocatable"]["volcano.sh/vgpu-number"] = "20"
    pods = [pod(f"p-{n}", "volcano", 0, second=n) for n in range(4)]
    for number, one in enumerate(pods):
        asks = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "16000"}
        one["spec"]["containers"][0]["resources"]["limits"] |= asks
        one["metadata"]["annotations"] = {
            "volcano.sh/vgpu-ids-new": f"GPU-{number % 2},NVIDIA,16000,0:;",
            "volcano.sh/vgpu-node": "volcano",
        }
    rows = replayed(full, *pods)
    assert free(rows["best-fit"]) == (0, 0)
    assert "over-committed" not in caplog.text


@pytest.mark.parametrize(
    ("rules", "goes"),
    [
        ({}, True),
        ({"nodeSelector": {"pool": "a"}}, True),
        ({"nodeSelector": {"pool": "b"}}, False),
        (affinity({"key": "pool", "operator": "In", "values": ["b"]}), False),
        (affinity({"key": "pool", "operator": "NotIn", "values": ["b"]}), True),
        (affinity({"key": "pool", "operator": "Exists"}), True),
        (affinity({"key": "pool", "operator": "DoesNotExist"}), False),
        (affinity({"key": "rank", "operator": "Gt", "values": ["3"]}), True),
        (affinity({"key": "rank", "operator": "Lt", "values": ["3"]}), False),
        (affinity({"key": "pool", "operator": "Roughly", "values": ["a"]}), False),
        (affinity(), False),
        (affinity(fields=[{"key": "metadata.name", "operator": "In", "values": ["n2"]}]), False),
        (affinity(fields=[{"key": "metadata.name", "operator": "In", "values": ["n1"]}]), True),
    ],
)
def test_selector_and_required_affinity_are_kept(replayed, rules: dict[str, Any], goes: bool) -> None:
    nodes = node("n1", labels={"rank": "5"}), node("n2", labels={"pool": "c"})
    rows = replayed(*nodes, pod("first", "n1", 2, owner="DaemonSet"), pod("a", "n2", 2, **rules))
    assert free(rows["best-fit"]) == ((4, 1) if goes else (4, 0))


@pytest.mark.parametrize(
    ("tolerations", "goes"),
    [
        ([], False),
        ([{"operator": "Exists"}], True),
        ([{"key": "team", "operator": "Exists"}], True),
        ([{"key": "team", "value": "a"}], True),
        ([{"key": "team", "value": "b"}], False),
        ([{"key": "other", "operator": "Exists"}], False),
        ([{"key": "team", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}], True),
        ([{"key": "team", "operator": "Equals", "value": "a"}], False),
    ],
)
def test_taints_are_kept(replayed, tolerations: list[Any], goes: bool) -> None:
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    first, other = pod("first", "n1", 2, owner="DaemonSet"), pod("a", "n2", 2, tolerations=tolerations)
    rows = replayed(node("n1", taints=[taint]), node("n2"), first, other)
    assert free(rows["best-fit"]) == ((4, 1) if goes else (4, 0))


def share(name: str, on: str, part: str, gpu: int = 0) -> dict[str, Any]:
    one = pod(name, on, 0)
    one["metadata"]["annotations"] = {"stowage.dev/gpu-compute": part, "stowage.dev/gpu-indices": str(gpu)}
    return one


def test_bad_input_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"kind": "List", "items": []}')
    text = tmp_path / "text.json"
    text.write_text("Error from server")
    for path in (empty, text, tmp_path / "none"):
        assert cli.main(["replay", "--snapshot", str(path)]) == 2
    lines = capsys.readouterr().err.strip().split("\n")
    errors = [line for line in lines if not line.startswith("stowage replay: reading ")]
    assert len(errors) == 3
    for says, error in zip(
        [
            "no node that accepts pods has a GPU",
            "holds no Kubernetes objects",
            "cannot be read",
        ],
        errors,
        strict=True,
    ):
        assert says in error
    with pytest.raises(BadInput):
        list(replay_snapshot([empty], ["best-fit"], NO_SETTINGS, quiet))
    with pytest.raises(Unavailable):
        list(replay_snapshot([text], ["best-fit"], NO_SETTINGS, quiet))


SLICED = {
    "nvidia.com/gpu.product": "NVIDIA-L40S-SHARED",
    "nvidia.com/gpu.count": "4",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.memory": "46068",
}
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}


def mixed() -> list[dict[str, Any]]:
    """Two pods on H100 nodes that would both fit beside each other, or on time slices of an L40S."""
    nodes = [node(f"h100-{n}", 8, labels=H100) for n in range(2)] + [node("l40s", 16, labels=SLICED)]
    return [*nodes, pod("a", "h100-0"), pod("b", "h100-1")]


def test_pods_on_parts_are_counted_while_whole_gpus_are_free(replayed, tmp_path: Path) -> None:
    says = pod("says", "h100-0")
    says["metadata"]["annotations"] = {"stowage.dev/whole-gpu": "false"}
    replayed(*mixed(), says)

    def packed(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
        path = tmp_path / "cluster.json"
        today, row = replay_snapshot([path], ["inventory"], settings, quiet, allow_downgrade=True)
        return today, row

    today, row = packed(NO_SETTINGS)
    assert (today["on_parts"], row["on_parts"]) == (0, 2)
    assert "2 pods on fractions of GPUs while whole ones are free (stowage.dev/whole-gpu, plain_gpu)" in (
        snapshot_table([today, row])
    )
    _, row = packed(NO_SETTINGS.model_copy(update={"plain_gpu": "whole"}))
    assert (row["on_parts"], row["placed"]["ml/says"]) == (0, "l40s")
    assert {row["placed"][key] for key in ("ml/a", "ml/b")} <= {"h100-0", "h100-1"}


def test_the_table_says_what_the_result_means(replayed) -> None:
    rows = [*replayed(*mixed(), policy="inventory").values()]
    text = snapshot_table(rows)
    assert "inventory: 1 more node would be free; 1 more 8-GPU job could start; 2 pods kept" in text
    assert "from a weaker device (--allow-downgrade)." in text
    full = [*replayed(node("n1"), pod("a", "n1", 4)).values()]
    assert "best-fit: no change from today." in snapshot_table(full)


def test_whole_gpus_are_counted_by_model(replayed) -> None:
    today = replayed(*mixed())["today"]
    assert today["whole_by_model"] == {"H100 SXM5 80GB": 14}
    assert today["could_start"] == {"8": 0, "4": 2, "2": 6}
    t4 = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}
    rows = [*replayed(*mixed(), node("t4", 1, labels=t4)).values()]
    assert "H100 SXM5 80GB     T4" in snapshot_table(rows)


def test_given_values_decide_which_gpu_goes_first(replayed) -> None:
    labels = [{"nvidia.com/gpu.product": name} for name in ("NVIDIA-L4", "NVIDIA-A10")]
    nodes = [node(name, 1, labels=one) for name, one in zip(("l4", "a10"), labels, strict=True)]
    for values, first in (({"L4": 1, "A10": 8}, "l4"), ({"L4": 8, "A10": 1}, "a10")):
        settings = Settings(gpu_values=values)
        rows = replayed(*nodes, pod("a", first), policy="inventory", settings=settings)
        assert rows["inventory"]["placed"] == {"ml/a": first}
        rows = replayed(*nodes, pod("a", "l4"), pod("b", "a10"), policy="inventory", settings=settings)
        assert rows["inventory"]["kept"] == {}
