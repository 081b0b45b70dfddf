"""What explain says of manifests as people write them, with their mistakes, on several clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extender.cli.main import main

from ..expected import check_words

FOLDER = Path(__file__).parent / "manifests"
# By manifest and cluster: words of the answer, and words that are not there.
RIGHT: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = [
    (
        "gke-jobset-2x8",
        "gke",
        ("1 of the 2 pods that must start together fits now", "inference/vllm-7f6d-0aaaa", "add a node like"),
        ("nvidia-b200", "the whole gang"),
    ),
    ("gke-typo-accel", "gke", ("(did you mean nvidia-h100-80gb?)",), ()),
    ("gke-computeclass", "gke", ("cloud.google.com/compute-class. A cluster autoscaler may add a node",), ()),
    ("eks-gke-toleration", "eks", ("It fits on 11 of 20 nodes",), ()),
    (
        "eks-lws",
        "eks",
        (
            "None of the 2 pods that must start together fits now",
            "wait until jupyter/jupyter-bob",
            "add 2 nodes like",
        ),
        ("add a node like",),
    ),
    (
        "eks-lws",
        "eks-plus1",
        ("1 of the 2 pods that must start together fits now", "add a node like", "(p5.48xlarge)"),
        ("add 2 nodes",),
    ),
    (
        "aks-wrong-taint",
        "aks",
        ("sku=gpu:NoSchedule (5 of 10 nodes)", '[{key: sku, operator: Equal, value: "gpu"'),
        (),
    ),
    ("onprem-hami-memonly", "onprem", ("nvidia.com/gpumem requires nvidia.com/gpu",), ()),
    ("onprem-runtimeclass", "onprem", ("no RuntimeClass 'nvidia-gpu'", "(did you mean nvidia?)"), ()),
    ("onprem-dra-toobig", "onprem", ("No device has a memory of 180Gi", "the largest has 140"), ()),
    (
        "onprem-dra-classtypo",
        "onprem",
        ("no DeviceClass 'gpu.nvidia.co'", "(did you mean gpu.nvidia.com?)"),
        (),
    ),
    ("onprem-dra-count", "onprem", ("No node has 9 devices", "the most is 8"), ("evict",)),
    (
        "onprem-dra-product",
        "onprem",
        ("No device matches", ".productName == 'NVIDIA H100'", "they have productName 'NVIDIA H200'"),
        ("evict",),
    ),
    ("onprem-dra-attribute", "onprem", ("No device matches", "they have no model"), ("evict",)),
    ("onprem-dra-class-without-devices", "onprem", ("No device is of the class 'mig.nvidia.com'",), ()),
    ("onprem-dra-v1beta1", "onprem", ("It fits on 2 of 12 nodes",), ()),
    (
        "onprem-dra-old-form",
        "onprem",
        ("unknown for 12", "unknown field deviceClassName"),
        ("It fits on 12",),
    ),
    ("onprem-dra-replicas", "onprem", ("2 of the 3 pods of its workload fit at the same time",), ()),
    (
        "aks-launcher-kept-out",
        "aks",
        ("change default/nccl-test-Launcher of its gang first: no node accepts it",),
        ("make the gang smaller",),
    ),
    (
        "gke-gpus-of-two-nodes",
        "gke",
        ("request at most 4 nvidia.com/gpu", "; 3 nvidia.com/gpu are free now"),
        (),
    ),
    (
        "onprem-hami-resource-typo",
        "onprem",
        ("Did you mean nvidia.com/gpumem-percentage?", 'limits: {nvidia.com/gpumem-percentage: "50"}'),
        ("remove",),
    ),
    (
        "onprem-quota-of-the-file",
        "onprem",
        ("gpus: 0 of 4 requests.nvidia.com/gpu are used", "requests 8"),
        (),
    ),
    (
        "gke-spread-without-label",
        "gke",
        ("It fits on none of 20 nodes", "topology spread: topology.kubernetes.io/rack (4 of 20 nodes)"),
        (),
    ),
    (
        "onprem-label-key-typo",
        "onprem",
        (
            "(did you mean nvidia.com/gpu.product?)",
            'write nodeSelector: {nvidia.com/gpu.product: "NVIDIA-H100-80GB-HBM3"}; then it fits on 2 nodes',
        ),
        (),
    ),
    ("onprem-node-name", "onprem", ("remove spec.nodeName",), ("wait until",)),
    (
        "onprem-shared-gpus-by-another-name",
        "onprem",
        (
            "node does not offer the requested GPU resource (1 of 12 nodes)",
            'What would help:\n  write limits: {nvidia.com/gpu.shared: "1"}',
        ),
        (),
    ),
    ("onprem-spread", "onprem", ("topology spread constraints are not checked", "At most 4 of"), ()),
    ("onprem-anti", "onprem", ("5 of the 8 pods of its workload fit at the same time",), ()),
    (
        "onprem-yaml-typo-key",
        "onprem",
        ("rejects it: 'resource' is no field", "(did you mean resources?)"),
        (),
    ),
    (
        "gke-jobset-b200",
        "gke",
        ("1 of the 2 pods that must start together fits now", "(a4-highgpu-8g)"),
        ("nvidia-h100", "the whole gang"),
    ),
    ("gkene-noexec", "gke-noexec", ("It fits on none of 20 nodes", "nvidia.com/gpu=present:NoExecute"), ()),
    (
        "onprem-pvc-typo",
        "onprem",
        ("'data-kin' in the namespace team-b (did you mean data-kim?)", "write claimName: data-kim"),
        (),
    ),
    ("onprem-hostport", "onprem", ("5 of the 8 pods of its workload fit at the same time",), ()),
    ("onprem-hostnetwork", "onprem", ("5 of the 8 pods of its workload fit at the same time",), ()),
    (
        "onprem-affinity-typo-op",
        "onprem",
        ("'in' is not an operator of node affinity (did you mean In?)",),
        (),
    ),
    (
        "onprem-toleration-operator",
        "onprem",
        ("rejects it: spec.tolerations[0].operator 'exists' is not supported (did you mean Exists?)",),
        ("It fits on",),
    ),
    (
        "gke-field-typo",
        "gke",
        ("'nodeSelectors' is no field of spec.template.spec (did you mean",),
        ("It fits", "is allocated"),
    ),
    ("gke-field-elsewhere", "gke", ("is no field of spec: it belongs to the pod's spec",), ("It fits on",)),
    (
        "onprem-dra-unknown-claim",
        "onprem",
        ("rejects it: 'gpus' is not among the resourceClaims of the pod (did you mean gpu?)",),
        ("It fits on",),
    ),
    (
        "onprem-job-restarts",
        "onprem",
        ("It fits on 5 of 12 nodes", "spec.template.spec.restartPolicy must be OnFailure or Never"),
        (),
    ),
    (
        "onprem-dra-template-typo",
        "onprem",
        ("no ResourceClaimTemplate 'two-gpu'", "(did you mean two-gpus?)"),
        (),
    ),
    (
        "gke-full-behind-spot",
        "gke",
        ('[{key: cloud.google.com/gke-spot, operator: Equal, value: "true", effect: NoSchedule}]: 2 nodes',),
        (),
    ),
    (
        "onprem-pinned-to-full",
        "onprem",
        (
            "wait until team-b/pre-0 on dgx-h100-0 ends",
            "remove kubernetes.io/hostname=dgx-h100-0 from spec.nodeSelector: 5 nodes would accept it",
        ),
        ("dgx-a100-0",),
    ),
    (
        "onprem-pinned-by-affinity",
        "onprem",
        ("remove kubernetes.io/hostname In dgx-h100-0 from spec.affinity.nodeAffinity: 5 nodes",),
        ("dgx-a100-0",),
    ),
    ("onprem-hugepages", "onprem", ("dgx-a100-0: needs 4 GiB of hugepages-1Gi",), ("cpu-0",)),
    (
        "onprem-alpha-gpu",
        "onprem",
        ("No node offers alpha.kubernetes.io/nvidia-gpu. Did you mean nvidia.com/gpu?", "fits on 5 nodes"),
        ("requests nothing", "cpu-0"),
    ),
    ("onprem-gt-unit", "onprem", ("gpu.memory Gt '80Gi' matches no node: the value is not an integer",), ()),
    (
        "onprem-kata",
        "onprem",
        ("No node has a label nvidia.com/gpu.workload.config", "node does not offer nvidia.com/pgpu"),
        ("Did you mean", "remove nvidia.com/pgpu"),
    ),
    (
        "onprem-priority-twice",
        "onprem",
        ("rejects it: its priority is 5000, that of its PriorityClass prod-high 100000",),
        ("It fits on",),
    ),
    (
        "onprem-dra-claim-elsewhere",
        "onprem",
        ("does not exist in the namespace team-b (there is one in team-a,",),
        (),
    ),
    (
        "onprem-pvc-elsewhere",
        "onprem",
        ("PersistentVolumeClaim 'data-kim' in the namespace team-a (there is one in team-b,",),
        (),
    ),
    (
        "onprem-kueue-level",
        "onprem",
        ("No node has a label cloud.provider.com/topology-rack. Kueue admits its workload only on nodes",),
        (),
    ),
    ("gke-oke-tol", "gke", ("It fits on 11 of 20 nodes",), ()),
]


@pytest.mark.parametrize(
    ("manifest", "cluster", "says", "never"), RIGHT, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_answer_is_right(
    manifest: str,
    cluster: str,
    says: tuple[str, ...],
    never: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, snapshot = FOLDER / f"{manifest}.yaml", FOLDER / f"{cluster}.json"
    assert main(["explain", "-f", str(file), "--snapshot", str(snapshot), "-o", "wide"]) == 0
    out = capsys.readouterr().out
    for words in says:
        check_words(Path(__file__), words, out)
    for words in never:
        assert words not in out, out


def test_it_is_not_said_that_no_node_has_the_devices_if_some_are_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = json.loads((FOLDER / "onprem.json").read_text(encoding="utf-8"))
    slices = [item for item in cluster["items"] if item["kind"] == "ResourceSlice"]
    slices[0]["spec"]["pool"]["resourceSliceCount"] = 2
    snapshot = tmp_path / "cluster.json"
    snapshot.write_text(json.dumps(cluster), encoding="utf-8")
    assert main(["explain", "-f", str(FOLDER / "onprem-dra-count.yaml"), "--snapshot", str(snapshot)]) == 0
    out = capsys.readouterr().out
    assert "No node has 9" not in out, out
    assert "unknown for 1" in out


def test_taints_of_the_control_plane_are_not_offered_to_a_pod_whose_nodes_are_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FOLDER / "gke.json").read_text(encoding="utf-8")
    snapshot = tmp_path / "cluster.json"
    snapshot.write_text(text.replace("cloud.google.com/gke-spot", "node-role.kubernetes.io/control-plane"))
    manifest = FOLDER / "gke-full-behind-spot.yaml"
    assert main(["explain", "-f", str(manifest), "--snapshot", str(snapshot), "-o", "wide"]) == 0
    out = capsys.readouterr().out
    assert "node-role.kubernetes.io/control-plane=true:NoSchedule" in out, out
    assert "write tolerations" not in out, out


def test_a_pod_that_the_api_server_rejects_fits_nowhere_by_its_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest, snapshot = FOLDER / "onprem-no-such-class.yaml", FOLDER / "onprem.json"
    assert main(["explain", "-f", str(manifest), "--snapshot", str(snapshot), "--exit-code"]) == 1
    assert "no PriorityClass 'prod-hihg': the API server rejects the pod" in capsys.readouterr().out
