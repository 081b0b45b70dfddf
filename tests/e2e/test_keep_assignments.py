"""deploy/keep-assignments.yaml in the real API server: what the owner of a pod and others may edit."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import httpx
import pytest

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .stowage import applied
from .workload import node, pod

GROUP = "rbac.authorization.k8s.io"
INDICES, COMPUTE = "stowage.dev/gpu-indices", "stowage.dev/gpu-compute"
HAMI, COUNT = "hami.io/vgpu-devices-allocated", "aliyun.com/gpu-count"
REQUEST = "nvidia.com/container.main.gpu-memory.request"
DEVICES = "nvidia.com/container.main.gpus.devices"
NAMESPACE = "stowage-system"


def account(name: str, namespace: str) -> list[Object]:
    """A service account with the rights of an ordinary user on pods."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
    may = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "patch", "delete"]}
    return [
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [may],
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def annotate(api: Api, name: str, **changes: object) -> Object:
    return api.patch("Pod", name, {"metadata": changes})


@pytest.fixture
def clients(cluster: ControlPlane, api: Api, stowage_kubeconfig: object) -> Iterator[dict[str, Api]]:
    """An ordinary user, a device plugin in kube-system, and Stowage with the right to bind."""
    made = [*account("owner", NAMESPACE), *account("plugin", "kube-system")]
    with ExitStack() as stack:
        stack.enter_context(applied(api, "rbac-bind.yaml"))
        for one in made:
            api.create(one)
            metadata = one["metadata"]
            stack.callback(api.delete, one["kind"], metadata["name"], metadata.get("namespace", ""))
        tokens = {
            "owner": api.token("owner"),
            "plugin": api.token("plugin", "kube-system"),
            "stowage": api.token("stowage"),
        }
        yield {name: stack.enter_context(cluster.client(token)) for name, token in tokens.items()}


def refused(action: Callable[[], object]) -> str:
    """The message of the policy. Fails if the API server accepts the request, or refuses it otherwise."""
    with pytest.raises(httpx.HTTPStatusError) as error:
        action()
    text = error.value.response.text
    assert "stowage-keep-assignments" in text
    return text


def test_what_a_pod_was_given_stays_as_it_was_bound(api: Api, clients: dict[str, Api]) -> None:
    owner, plugin, stowage = clients["owner"], clients["plugin"], clients["stowage"]
    api.create(node("n1", {}))
    forged = {HAMI: ";"}
    owner.create(pod("before", {}, annotations={INDICES: "1"}))  # the policy does not exist yet
    with applied(api, "keep-assignments.yaml"):
        probe = pod("probe", {}, annotations={INDICES: "1"})
        eventually(lambda: not taken(owner, probe), within_s=30, what="the policy is in force")

        # An ordinary user creates pods, and edits them while they wait.
        owner.create(pod("plain", {}))
        owner.create(pod("waits", {}, annotations={COMPUTE: "300m"}))
        annotate(owner, "waits", annotations={COMPUTE: "400m"}, labels={"a": "b"})
        annotate(owner, "plain", annotations=forged)  # a sharing system's scheduler overwrites it
        assert INDICES in refused(lambda: owner.create(pod("one", {}, annotations={INDICES: "0"})))
        assert HAMI in refused(lambda: owner.create(pod("one", {}, on="n1", annotations=forged)))
        assert INDICES in refused(lambda: annotate(owner, "waits", annotations={INDICES: "0"}))
        assert DEVICES in refused(lambda: owner.create(pod("one", {}, on="n1", annotations={DEVICES: "all"})))
        owner.create(pod("on", {}, on="n1"))

        # Stowage binds the pod, and writes its GPU.
        stowage.bind("waits", "n1", {INDICES: "0"})
        assert api.get("Pod", "waits")["metadata"]["annotations"] == {COMPUTE: "400m", INDICES: "0"}
        running = lambda: api.get("Pod", "waits")["status"].get("phase") == "Running"  # noqa: E731
        eventually(running, within_s=60, what="the pod runs: the policy allows the update of its status")

        # From then on these annotations cannot change, and everything else can.
        for change in (
            {"annotations": {COMPUTE: "1m"}},
            {"annotations": {COMPUTE: None}},
            {"annotations": {INDICES: "1"}},
            {"annotations": {INDICES: None}},
            {"annotations": {"gpu-fraction": "0.1"}},
            {"annotations": {"stowage.dev/nvlink": "yes"}},
            {"annotations": {HAMI: ";", "x": "y"}},
            {"annotations": {DEVICES: "GPU-1"}},
            {"annotations": {REQUEST: "1Gi"}},
            {"annotations": None},
            {"labels": {COUNT: "2"}},
        ):
            (name,) = {key for found in change.values() for key in found or (COMPUTE,) if key != "x"}
            assert name in refused(partial(annotate, owner, "waits", **change))
        annotate(owner, "waits", labels={"team": "ml"}, annotations={"note": "mine", COMPUTE: "400m"})
        annotate(owner, "on", labels=None, annotations={"note": "x" * 200_000})
        annotate(owner, "on", annotations={"note": None} | {f"a{i}": "x" * 100 for i in range(2000)})
        # Annotations from before the policy do not prevent other edits.
        annotate(owner, "before", labels={"a": "b"})
        annotate(plugin, "waits", annotations={"hami.io/bind-phase": "success"})
        annotate(api, "waits", annotations={COMPUTE: "300m"})  # an administrator

        # A controller that creates pods from templates cannot bypass the policy.
        assert INDICES in refused(lambda: plugin.create(pod("two", {}, annotations={INDICES: "0"})))
        owner.delete("Pod", "waits")


def taken(client: Api, obj: Object) -> bool:
    """Whether the API server would accept this object."""
    try:
        client.create(obj, dryRun="All")
    except httpx.HTTPStatusError:
        return False
    return True
