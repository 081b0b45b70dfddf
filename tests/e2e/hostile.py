"""Pods that an ordinary user may create to harm others, up to the limits of kube-apiserver."""

from collections.abc import Iterator
from contextlib import contextmanager

from .controlplane.api import NAMESPACE, Api, Object
from .controlplane.cluster import ControlPlane
from .workload import pod

GPU = "nvidia.com/gpu"
RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "create", "patch", "delete"]}]

UNREADABLE = (
    {"stowage.dev/nvlink": "yes"},
    {"stowage.dev/min-cuda": "latest"},
    {"gpu-fraction": "0.5"},
    {"nvidia.com/vgpu-mode": "mps"},
    {"stowage.dev/gpu-models": "H100," * 40_000},
)
"""Annotations that each make the request of a running pod unreadable."""


@contextmanager
def ordinary_user(cluster: ControlPlane, api: Api) -> Iterator[Api]:
    """A client of a user who may run pods in one namespace."""
    author = {"name": "author", "namespace": "stowage-system"}
    role = {"name": "author", "namespace": NAMESPACE}
    subject = {"kind": "ServiceAccount", **author}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "author"}
    group = "rbac.authorization.k8s.io/v1"
    made: list[Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": author},
        {"apiVersion": group, "kind": "Role", "metadata": role, "rules": RULES},
        {
            "apiVersion": group,
            "kind": "RoleBinding",
            "metadata": role,
            "roleRef": reference,
            "subjects": [subject],
        },
    ]
    for one in made:
        api.create(one)
    try:
        with cluster.client(api.token("author")) as client:
            yield client
    finally:
        for one in made:
            api.delete(one["kind"], "author", one["metadata"]["namespace"])


def waiting_pods() -> list[Object]:
    """Pods that cannot be placed, each built to cost much time."""
    return [
        pod("asks-for-3000000000", {GPU: 3_000_000_000}),
        pod("asks-for-a-million", {GPU: 1_000_000}),
        *(pod(f"asks-for-{n}", {GPU: 2**31 + n}) for n in range(20)),
        pod("lists-models", {GPU: 1}, annotations={"stowage.dev/gpu-models": ",".join(_names(23 << 10))}),
        pod("claims", {GPU: 1}, annotations={"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1,1:" * 14_000}),
        pod("many-digits", {}, annotations={"stowage.dev/gpu-compute": "9" * 100_000}),
        pod("deep", {}, annotations={"scheduling.koordinator.sh/device-allocated": "[" * 200_000}),
        pod("tiny-fraction", {}, annotations={"gpu-fraction": "1e-999999999"}),
        _many_containers("many-containers", 2_000),
        _large_affinity("large-affinity", 5_000),
        _many_tolerations("many-tolerations", 5_000),
    ]


def intruders(node: str) -> list[Object]:
    """Pods without a GPU and with unreadable annotations, created on a node without a scheduler."""
    notes = [{"stowage.dev/gpus": "banana"}, {"stowage.dev/gpu-compute": "-1"}, *UNREADABLE]
    return [
        pod(f"intruder-{n}-on-{node}", {}, on=node, cpu="10m", annotations=note)
        for n, note in enumerate(notes)
    ]


def _names(size: int) -> Iterator[str]:
    for number in range(size // 6):
        yield f"m{number:04d}"


def _many_containers(name: str, count: int) -> Object:
    made = pod(name, {GPU: 8})
    (container,) = made["spec"]["containers"]
    tiny = {"requests": {"cpu": "1m"}}
    made["spec"]["containers"] += [container | {"name": f"c{n}", "resources": tiny} for n in range(count)]
    return made


def _large_affinity(name: str, values: int) -> Object:
    made = pod(name, {GPU: 1})
    expression = {"key": "zone", "operator": "In", "values": [f"zone-{n}" for n in range(values)]}
    term = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    made["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    return made


def _many_tolerations(name: str, count: int) -> Object:
    made = pod(name, {GPU: 2**31})
    made["spec"]["tolerations"] = [{"key": f"key-{n}", "operator": "Exists"} for n in range(count)]
    return made
