"""Manifests as people write them, right and wrong, and the sentence that ``stowage explain`` has for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.extender.cli.test_explain_cases import NODE, Case

GPU = "nvidia.com/gpu: 1"
NONE = "It fits on none of 36 nodes"
FITS = "It fits on 26 of 36 nodes"
ANYWHERE = "It fits on 36 of 36 nodes"  # without a GPU
REFUSED = "train cannot run on any node: the API server rejects it: "


@pytest.fixture
def case(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Case(tmp_path / "pod.yaml", capsys)


def pod(limits: str = GPU, *, meta: str = "", spec: str = "", requests: str = "", name: str = "train") -> str:
    resources = f"limits: {{{limits}}}" + (f", requests: {{{requests}}}" if requests else "")
    return (
        f"kind: Pod\nmetadata: {{name: {name}, namespace: team{meta}}}\n"
        f"spec: {{schedulerName: stowage{spec}, containers: [{{name: main, resources: {{{resources}}}}}]}}\n"
    )


def annotated(name: str, text: str) -> str:
    return pod("cpu: 1", meta=f', annotations: {{{name}: "{text}"}}')


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        # Resources
        (pod("nvidia.com/gpus: 1"), ["No node offers nvidia.com/gpus. Did you mean nvidia.com/gpu?", NONE]),
        (pod("nvidia/gpu: 1"), ["No node offers nvidia/gpu. Did you mean nvidia.com/gpu?", NONE]),
        (pod("nvidia.com/mig-3G.40GB: 1"), ["Did you mean nvidia.com/mig-3g.40gb?", NONE]),
        (
            pod("nvidia.com/mig-1g.5gb: 1"),
            [
                "No GPU model of the nodes has this MIG profile.",
                'write limits: {nvidia.com/mig-1g.10gb: "1"}',
                NONE,
            ],
        ),
        (pod("nvidia.com/mig-7g.40gb: 1"), ["No GPU model of the nodes has this MIG profile. Offered", NONE]),
        (
            pod().replace("stowage", "kai-scheduler"),
            ["the schedulerName 'kai-scheduler'. Is that scheduler installed?", FITS],
        ),
        (
            pod("amd.com/gpu: 1"),
            ["requests 1 amd.com/gpu\n", f"{NONE}. No node offers amd.com/gpu. It needs"],
        ),
        (pod("volcano.sh/gpu-memory: 1024"), ["No node offers volcano.sh/gpu-memory.", NONE]),
        (pod("gpu: 1"), [f"{REFUSED}'gpu' is not a Kubernetes resource (did you mean nvidia.com/gpu?)"]),
        (pod("cpu: 1", requests=GPU), [f"{REFUSED}nvidia.com/gpu has a request but no limit"]),
        (pod("nvidia.com/gpu: 2", requests=GPU), ["the request of nvidia.com/gpu is '1', its limit '2'"]),
        (pod('nvidia.com/gpu: "1"'), [FITS]),
        (pod("nvidia.com/gpu: 17"), ["No node is large enough", "needs 17 nvidia.com/gpu, 8 of 8"]),
        (
            pod("nvidia.com/gpu: 1, cpu: 500"),
            ["No node is large enough", "needs 500 CPUs, 254 of 254 are free"],
        ),
        (pod(f"{GPU}, memory: 16m"), ["memory: '16m' is less than a MiB. For 16 MiB write 16Mi.", FITS]),
        (pod("cpu: 1"), ["\nIt requests no GPU.\n", ANYWHERE]),
        (pod("nvidia.com/gpu: 0"), ["\nIt requests no GPU.\n", ANYWHERE]),
        # Words of sharing systems
        (annotated("stowage.dev/gpu-computee", "50%"), ["(did you mean stowage.dev/gpu-compute?)", ANYWHERE]),
        (annotated("stowage.dev/gpu-memory", "16"), ["is in bytes. For 16 GiB write 16Gi."]),
        (
            annotated("stowage.dev/gpu-memory", "16G"),
            ["requests 1 CPU, 14.9 GiB of the memory of 1 GPU\n", NONE],
        ),
        (
            annotated("gpu-memory", "4096M"),
            ["cannot run on any node: gpu-memory: '4096M'", "for 4096M write 3906."],
        ),
        (annotated("gpu-fraction", "1.5"), ["gpu-fraction: '1.5' is not a number between 0 and 1"]),
        (
            annotated("runai-fraction", "0.5"),
            ["(did you mean gpu-fraction?)", "It requests no GPU.", ANYWHERE],
        ),
        (
            pod("cpu: 1", meta=', labels: {gpu-fraction: "0.5"}'),
            [
                "No component reads gpu-fraction in labels: write it as an annotation.",
                "It requests no GPU.",
                ANYWHERE,
            ],
        ),
        (pod(f"{GPU}, nvidia.com/gpumem: 3000"), ["in the format of HAMi, which no node runs.", NONE]),
        (
            pod("aliyun.com/gpu-mem: 3"),
            ["requests 3 aliyun.com/gpu-mem of 1 GPU\n", "in the format of gpushare", NONE],
        ),
        (pod("volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 3000"), ["in the format of Volcano", NONE]),
        (
            pod("koordinator.sh/gpu-core: 50, koordinator.sh/gpu-memory-ratio: 50"),
            ["in the format of Koordinator", NONE],
        ),
        # Names
        (pod(meta=", labels: {stowage.dev/quee: batch}"), ["(did you mean stowage.dev/queue?)", FITS]),
        (
            pod(meta=", labels: {stowage.dev/queue: bach}"),
            ["There is no queue 'bach' (did you mean batch?). Queues: interactive, batch, backfill.", FITS],
        ),
        (pod().replace("stowage", "stowge"), ["the schedulerName 'stowge' (did you mean stowage?).", FITS]),
        (
            pod(spec=", nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100}"),
            ["gpu.product='NVIDIA-H100' (did you mean NVIDIA-H100-80GB-HBM3?). Nodes have ", NONE],
        ),
        (
            pod(spec=", nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-80GB-PCI}"),
            ["gpu.product='NVIDIA-A100-80GB-PCI' (did you mean NVIDIA-A100-SXM4-80GB?). Nodes have ", NONE],
        ),
        (
            pod(spec=", nodeSelector: {nvidia.com/gpu.produkt: x}"),
            ["No node has a label nvidia.com/gpu.produkt (did you mean nvidia.com/gpu.product?).", NONE],
        ),
        (
            pod(meta=", annotations: {stowage.dev/gpu-models: H300}"),
            [
                f"{NONE}. No node has a GPU model that the pod allows (stowage.dev/gpu-models: H300).",
                "Nodes have NVIDIA-H100-80GB-HBM3 (14), ",
            ],
        ),
        (
            pod(spec=", nodeName: h100-01"),
            [
                "Its manifest sets nodeName 'h100-01': kube-",
                "h100-01: needs 1 nvidia.com/gpu, 0 of 8",
            ],
        ),
        (
            pod(spec=", nodeName: h100-99"),
            [f"{NONE}. Its manifest sets nodeName", "and there is no such node", "remove spec.nodeName"],
        ),
        # What is not checked or not known yet
        (
            pod(
                spec=", topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, "
                "whenUnsatisfiable: DoNotSchedule}]"
            ),
            [FITS, "(without checking its topology spread)"],
        ),
        (
            pod("cpu: 1", spec=", resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]"),
            ["the ResourceClaimTemplate 'one' when the pod is created", f"{NONE}, unknown for 36"],
        ),
        (
            pod("cpu: 1", spec=", resourceClaims: [{name: gpu, resourceClaimName: one}]"),
            [
                "Its claim 'one' does not exist in the namespace team.",
                "kubectl get resourceclaims -n team",
                NONE,
            ],
        ),
        # Containers
        (
            pod("cpu: 1", spec=f", initContainers: [{{name: warm, resources: {{limits: {{{GPU}}}}}}}]"),
            ["requests 1 CPU, 1 nvidia.com/gpu", FITS],
        ),
        (
            pod(
                "nvidia.com/gpu: 4",
                spec=", initContainers: [{name: side, restartPolicy: Always, resources: {limits: "
                "{nvidia.com/gpu: 5}}}]",
            ),
            ["requests 9 nvidia.com/gpu", "needs 9 nvidia.com/gpu, 8 of 8 are free"],
        ),
    ],
)
def test_what_explain_says(case: Case, manifest: str, says: list[str]) -> None:
    out = case.explain_text(manifest)
    for text in says:
        assert text in out
    assert ("Best:" in out) == (FITS in says or ANYWHERE in says)


CONTAINER = f"{{name: main, image: x, resources: {{limits: {{{GPU}}}}}}}"
TEMPLATE = f"template: {{spec: {{schedulerName: stowage, containers: [{CONTAINER}]}}}}"


@pytest.mark.parametrize(
    ("kind", "spec", "titles"),
    [
        ("Deployment", TEMPLATE, [""]),
        ("StatefulSet", TEMPLATE, [""]),
        ("DaemonSet", TEMPLATE, [""]),
        ("ReplicaSet", TEMPLATE, [""]),
        ("CronJob", f"jobTemplate: {{spec: {{{TEMPLATE}}}}}", [""]),
        ("Service", TEMPLATE, [""]),  # of Knative
        (
            "JobSet",
            f"replicatedJobs: [{{name: driver, template: {{spec: {{{TEMPLATE}}}}}}}, "
            f"{{name: workers, template: {{spec: {{{TEMPLATE}}}}}}}]",
            [" driver", " workers"],
        ),
        (
            "RayJob",
            f"rayClusterSpec: {{headGroupSpec: {{{TEMPLATE}}}, workerGroupSpecs: "
            f"[{{groupName: gpu, {TEMPLATE}}}]}}",
            [" head", " gpu"],
        ),
        (
            "MPIJob",
            f"mpiReplicaSpecs: {{Launcher: {{{TEMPLATE}}}, Worker: {{{TEMPLATE}}}}}",
            [" Launcher", " Worker"],
        ),
        (
            "LeaderWorkerSet",
            f"leaderWorkerTemplate: {{leaderT{TEMPLATE[1:]}, workerT{TEMPLATE[1:]}}}",
            [" leader", " worker"],
        ),
        ("Workflow", f"entrypoint: a, templates: [{{name: a, container: {CONTAINER}}}]", [""]),
        ("InferenceService", f"predictor: {{model: {CONTAINER}}}", [""]),
        ("InferenceService", f"predictor: {{containers: [{CONTAINER}]}}", [""]),
    ],
)
def test_workloads(case: Case, kind: str, spec: str, titles: list[str]) -> None:
    out = case.explain_text(f"kind: {kind}\nmetadata: {{name: w, namespace: team}}\nspec: {{{spec}}}\n")
    found = [line for line in out.split("\n") if line.startswith(f"{kind} w")]
    assert found == [f"{kind} w{title}:" for title in titles]
    assert out.count("requests 1 nvidia.com/gpu\n") == out.count(FITS) == len(titles)


def test_a_manifest_with_anchors(case: Case) -> None:
    resources = "{requests: &one {nvidia.com/gpu: 1}, limits: *one}"
    text = f"kind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: a, resources: {resources}}}]}}\n"
    assert "requests 1 nvidia.com/gpu\n" in case.explain_text(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is empty"),
        (b"# nothing\n---\n", "is empty"),
        (b"\x7fELF\xff\xfe", "is not text"),
        (b"\x00\x01\x02", "is not YAML: the text has a character that YAML does not allow"),
        (
            b"kind: Pod\nmetadata: {name: a}\nspec: *m\n",
            "an alias to an incomplete value (line 3)",
        ),
        (b"kind: MyThing\nspec: {size: 3}\n", "has no pod and no pod template (MyThing): create it, and"),
        (b"kind: Pod\nmetadata: {name: a}\nspec: {containers: nvidia}\n", "spec.containers: "),
        (b"kind: Pod\nspec: {containers: []}\n", "a pod has no name"),
    ],
)
def test_files_without_an_answer(case: Case, text: bytes, says: str) -> None:
    case.path.write_bytes(text)
    error = case.error(str(case.path), "--example")
    assert says in error
    assert error.startswith("stowage explain: ")
    assert error.count("\n") == 1


def test_what_stands_beside_the_pods_counts(case: Case) -> None:
    group = "kind: PodGroup\napiVersion: scheduling.x-k8s.io/v1alpha1\nmetadata: {name: g, namespace: team}\n"
    member = pod("nvidia.com/gpu: 8", meta=", labels: {scheduling.x-k8s.io/pod-group: g}")
    out = case.explain_text(f"{group}spec: {{minMember: 100}}\n---\n{member}")
    assert "It belongs to the gang coscheduling team/g: 0 of 1 members run, 100 required" in out
    assert NONE in out
    assert "the pod's gang does not fit as a whole" in out
    assert "add 89 nodes like h100-" in out
    assert "wait" not in out


def test_taints_and_priority_classes_by_name(case: Case, tmp_path: Path) -> None:
    taint = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
    items = [NODE | {"spec": {"taints": [taint]}}, {"kind": "PriorityClass", "metadata": {"name": "high"}}]
    (tmp_path / "cluster").write_text(json.dumps({"kind": "List", "items": items}))
    snapshot = "--snapshot", str(tmp_path / "cluster")
    out = case.explain_text(pod(spec=", priorityClassName: hihg"), *snapshot)
    assert "There is no PriorityClass 'hihg': the API server rejects the pod (did you mean high?)." in out
    assert "  write priorityClassName: high" in out
    out = case.explain_text(pod(), *snapshot)
    reason = "node has a taint that the pod does not tolerate: dedicated=ml:NoSchedule (1 of 1 node)"
    toleration = '{key: dedicated, operator: Equal, value: "ml", effect: NoSchedule}'
    assert f"It fits on none of 1 node: {reason}\n" in out
    assert f"What would help:\n  write tolerations: [{toleration}]: 1 node would accept it\n" in out
    tolerant = ", priorityClassName: high, tolerations: [{key: dedicated, operator: Exists}]"
    out = case.explain_text(pod(spec=tolerant), *snapshot)
    assert "PriorityClass" not in out
    assert "It fits on 1 of 1 node" in out
