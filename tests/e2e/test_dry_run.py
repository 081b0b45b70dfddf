"""`stowage explain -f` asks the real API server by dry runs, and creates nothing."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.rejected import ACCEPTED, REJECTED

from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU
from .stowage import PROGRAM
from .workload import node

TEAM, ASKED = "dry-team", "By a server-side dry run as your user, which created nothing."
NOT_ASKED = "Without a server-side dry run, by the defaults that are known: "


@pytest.fixture(autouse=True)
def team(api: Api) -> Iterator[None]:
    """A namespace, which is never deleted: its controller does not run. And a node."""
    names = [item["metadata"]["name"] for item in api.list("Namespace")["items"]]
    if TEAM not in names:
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    api.create(node("n1", {GPU: 8}))
    before = all_objects(api)
    yield
    assert all_objects(api) == before


def all_objects(api: Api) -> set[str]:
    """What a dry run might have created."""
    kinds = "/api/v1/pods", "/apis/batch/v1/jobs", "/apis/apps/v1/deployments", "/apis/apps/v1/statefulsets"
    return {item["metadata"]["uid"] for kind in kinds for item in api.request("GET", kind)["items"]}


def pod(**spec: object) -> Object:
    container = {"name": "c", "image": "none", "resources": {"limits": {GPU: "1"}}}
    metadata = {"name": "p", "namespace": TEAM}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], **spec},
    }


def workload(kind: str, group: str = "apps/v1", *, template: Object | None = None, **spec: object) -> Object:
    made = {"metadata": {"labels": {"app": "w"}}, "spec": (template or pod())["spec"]}
    metadata = {"name": "w", "namespace": TEAM}
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": {**spec, "template": made}}


def explain(kubeconfig: Path, manifest: Object, *arguments: str) -> str:
    others = {name: value for name, value in os.environ.items() if not name.startswith("STOWAGE_")}
    found = subprocess.run(
        [str(PROGRAM), "explain", "-f", "-", *arguments],
        input=json.dumps(manifest),
        capture_output=True,
        text=True,
        env=others | {"KUBECONFIG": str(kubeconfig), "COLUMNS": "1000"},
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@contextmanager
def made(api: Api, path: str, obj: Object) -> Iterator[None]:
    api.request("POST", path, obj)
    try:
        yield
    finally:
        api.request("DELETE", f"{path}/{obj['metadata']['name']}")


@pytest.fixture
def quota(api: Api) -> Iterator[None]:
    """Used up. No controller writes its status here."""
    path, hard = f"/api/v1/namespaces/{TEAM}/resourcequotas", {f"requests.{GPU}": "4"}
    with made(api, path, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}}):
        api.request("PATCH", f"{path}/gpus/status", {"status": {"hard": hard, "used": hard}})
        yield


@pytest.mark.parametrize(
    "manifest", [pod(), workload("Job", "batch/v1", template=pod(restartPolicy="Never"))]
)
def test_a_quota_that_is_used_up_is_the_reason(cluster: ControlPlane, quota: None, manifest: Object) -> None:
    said = ""

    def is_refused() -> bool:
        nonlocal said
        said = explain(cluster.kubeconfig, manifest)
        return "cannot run on any node: the API server rejects it: pods " in said

    eventually(is_refused, within_s=30, what="the API server knows the quota")
    assert f"exceeded quota: gpus, requested: requests.{GPU}=1, used: requests.{GPU}=4" in said
    assert ASKED in said


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (
            pod() | {"spec": {"containers": [{"name": "c", "image": "x", "resource": {}}]}},
            'unknown field "spec.',
        ),
        (pod(tolerations=[{"key": "k", "operator": "exists"}]), 'Unsupported value: "exists"'),
        (pod(runtimeClassName="missing"), 'RuntimeClass "missing" not found'),
        (pod(priorityClassName="missing"), "no PriorityClass with name missing was found"),
        (workload("Deployment", replicas=1), "spec.selector: Required value"),
    ],
)
def test_what_the_api_server_rejects_is_the_reason_in_its_words(
    cluster: ControlPlane, broken: Object, reason: str
) -> None:
    said = explain(cluster.kubeconfig, broken)
    assert "cannot run on any node: the API server rejects it: " in said
    assert reason in said
    assert ASKED in said


@pytest.mark.parametrize(
    ("manifest", "is_accepted"),
    [*((manifest, False) for manifest, _ in REJECTED), *((manifest, True) for manifest in ACCEPTED)],
)
def test_what_is_known_to_be_a_mistake_is_one_for_the_api_server(
    api: Api, manifest: Object, is_accepted: bool
) -> None:
    version, kind = manifest["apiVersion"], manifest["kind"].lower()
    path = f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{TEAM}/{kind}s"
    strictly = "dryRun=All&fieldValidation=Strict"
    if is_accepted:
        api.request("POST", f"{path}?{strictly}", manifest)
        return
    with pytest.raises(httpx.HTTPStatusError) as refused:
        api.request("POST", f"{path}?{strictly}", manifest)
    assert refused.value.response.status_code in (400, 403, 404, 422)


def test_of_each_node_the_rejection_is_the_reason(cluster: ControlPlane) -> None:
    broken = pod(runtimeClassName="missing")
    (each,) = json.loads(explain(cluster.kubeconfig, broken, "--all", "-o", "json"))
    assert (each["node"], each["fits"]) == ("n1", False)
    assert 'RuntimeClass "missing" not found' in each["reason"]


def test_what_the_api_server_adds_counts(cluster: ControlPlane, api: Api) -> None:
    limits = {
        "metadata": {"name": "cpu"},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "7"}}]},
    }
    kata = {"metadata": {"name": "kata"}, "handler": "kata", "overhead": {"podFixed": {"cpu": "2"}}}
    found: Object = {}

    def is_complete() -> bool:
        found.update(json.loads(explain(cluster.kubeconfig, pod(runtimeClassName="kata"), "-o", "json")))
        return bool(found["asks"].get("cpuMilli") == 9000)

    with (
        made(api, f"/api/v1/namespaces/{TEAM}/limitranges", limits),
        made(api, "/apis/node.k8s.io/v1/runtimeclasses", kata),
    ):
        eventually(is_complete, within_s=30, what="the API server knows the LimitRange")
    assert ASKED in found["hints"]
    assert "API server adds" not in str(found["hints"])


@pytest.mark.parametrize(
    "manifest",
    [
        workload("Deployment", replicas=2, selector={"matchLabels": {"app": "w"}}),
        workload(
            "StatefulSet",
            template=pod(
                containers=[
                    {
                        "name": "c",
                        "image": "none",
                        "resources": {"limits": {GPU: "1"}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }
                ]
            ),
            selector={"matchLabels": {"app": "w"}},
            serviceName="w",
            volumeClaimTemplates=[
                {
                    "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }
            ],
        ),
        workload("DaemonSet", selector={"matchLabels": {"app": "w"}}),
    ],
    ids=lambda manifest: manifest["kind"],
)
def test_the_pods_of_a_workload_are_asked_about(cluster: ControlPlane, manifest: Object) -> None:
    said = explain(cluster.kubeconfig, manifest)
    assert f"{TEAM}/w requests 1 {GPU}" in said
    assert "It fits on 1 of 1 node" in said
    assert ASKED in said


def test_a_user_who_may_not_create_pods_gets_the_known_defaults(api: Api, stowage_kubeconfig: Path) -> None:
    limits = {
        "metadata": {"name": "cpu"},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "7"}}]},
    }
    with made(api, f"/api/v1/namespaces/{TEAM}/limitranges", limits):
        said = explain(stowage_kubeconfig, pod())
    assert f'{NOT_ASKED}pods is forbidden: User "system:serviceaccount:stowage-system:stowage"' in said
    assert "On creation, the API server adds requests of cpu=7 (LimitRange)" in said
    assert "It fits on 1 of 1 node" in said


@pytest.mark.parametrize(
    ("side_effects", "reason"),
    [("NoneOnDryRun", "failed calling webhook"), ("Some", "does not support dry run")],
)
def test_a_webhook_that_cannot_be_asked_leaves_the_known_defaults(
    cluster: ControlPlane, side_effects: str, reason: str
) -> None:
    hook = {
        "name": "notes.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "rules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
        ],
        "sideEffects": side_effects,
        "admissionReviewVersions": ["v1"],
        "objectSelector": {"matchLabels": {"noted": "yes"}},
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": 5,
    }
    noted = pod() | {"metadata": {"name": "p", "namespace": TEAM, "labels": {"noted": "yes"}}}
    with stored(
        cluster, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", webhooks=[hook]
    ):
        said = ""

        def is_not_asked() -> bool:
            nonlocal said
            said = explain(cluster.kubeconfig, noted)
            return NOT_ASKED in said

        eventually(is_not_asked, within_s=30, what="the API server calls the webhook")
    assert reason in said
    assert "It fits on 1 of 1 node" in said


@contextmanager
def stored(cluster: ControlPlane, resource: str, kind: str, **more: object) -> Iterator[None]:
    """An object that is written to etcd: the API server has stopped to accept side effects, and honors what
    it has accepted before."""
    metadata = {"name": "notes", "uid": "b0e4b2c2-0c2c-4b0e-9a53-6d3c7c9d2f11"}
    obj = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, **more}
    key, value = (
        base64.b64encode(text.encode()).decode() for text in (f"/registry/{resource}/notes", json.dumps(obj))
    )
    httpx.post(f"{cluster.etcd_url}/v3/kv/put", json={"key": key, "value": value}).raise_for_status()
    try:
        yield
    finally:
        httpx.post(f"{cluster.etcd_url}/v3/kv/deleterange", json={"key": key}).raise_for_status()


def test_a_kind_that_is_not_served_leaves_the_known_defaults(cluster: ControlPlane) -> None:
    said = explain(cluster.kubeconfig, workload("Foo", "example.com/v1"))
    assert f"{NOT_ASKED}the API server does not serve Foo of example.com/v1" in said
    assert "It fits on 1 of 1 node" in said


def test_without_the_cluster_nothing_is_asked(cluster: ControlPlane) -> None:
    said = explain(cluster.kubeconfig, pod(priorityClassName="missing"), "--local")
    assert "dry run" not in said
