"""A thin client of the Kubernetes REST API for the tests.

Objects are plain JSON dictionaries, as the API server sends them: the tests must not check objects with code
that Stowage uses. The client has no cache and does not retry.
"""

import json
import re
import ssl
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

Object = dict[str, Any]

NAMESPACE = "default"
COLLECTIONS = {
    "Node": "/api/v1/nodes",
    "Pod": f"/api/v1/namespaces/{NAMESPACE}/pods",
    "Event": f"/api/v1/namespaces/{NAMESPACE}/events",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "PodDisruptionBudget": f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
    "ResourceClaim": f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims",
    "ResourceClaimTemplate": f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaimtemplates",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "PodGroup": f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/podgroups",
    "NativePodGroup": f"/apis/scheduling.k8s.io/v1beta1/namespaces/{NAMESPACE}/podgroups",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/stowage-system/serviceaccounts",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
    "MutatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/stowage-system/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/stowage-system/rolebindings",
    "ConfigMap": "/api/v1/namespaces/stowage-system/configmaps",
    "Service": "/api/v1/namespaces/stowage-system/services",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims",
    "Workload": f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads",
    "Job": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    "ReplicaSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets",
    "Deployment": "/apis/apps/v1/namespaces/stowage-system/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/stowage-system/daemonsets",
}
# Pods before nodes, so that no pod is bound to a deleted node; events last, because deletions create events.
LEFT_BY_TESTS = (
    "Job",
    "ReplicaSet",
    "Pod",
    "NativePodGroup",
    "Node",
    "ResourceClaim",
    "ResourceSlice",
    "DeviceClass",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "PodDisruptionBudget",
    "Event",
)


def collection(kind: str, namespace: str = "") -> str:
    """The path of the objects of this kind, in the usual namespace unless another is given."""
    return re.sub("(?<=/namespaces/)[^/]+", namespace, COLLECTIONS[kind]) if namespace else COLLECTIONS[kind]


class Api:
    """Requests by kind. A failure raises httpx.HTTPStatusError, with the answer of the server as a note."""

    def __init__(self, server: str, *, token: str, ca: Path) -> None:
        self._http = httpx.Client(
            base_url=server,
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=ca),
            trust_env=False,
            timeout=30,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def healthy(self, path: str = "/readyz") -> bool:
        try:
            return self._http.get(path).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        return self._send("GET", f"{collection(kind, namespace)}/{name}")

    def list(self, kind: str, **selectors: str) -> Object:
        """The list object. A watch starts from the resourceVersion in its metadata."""
        return self._send("GET", COLLECTIONS[kind], params=selectors)

    def create(self, obj: Object, kind: str = "", **options: str) -> Object:
        """`kind`: where two APIs have objects of the same kind."""
        path = collection(kind or obj["kind"], obj["metadata"].get("namespace", ""))
        return self._send("POST", path, json=obj, params=options)

    def replace(self, obj: Object) -> Object:
        metadata = obj["metadata"]
        path = collection(obj["kind"], metadata.get("namespace", ""))
        return self._send("PUT", f"{path}/{metadata['name']}", json=obj)

    def create_all(self, objects: Iterable[Object]) -> None:
        """Creates the objects in parallel, in no particular order."""
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(self.create, objects):
                pass

    def bind(self, pod: str, node: str, annotations: dict[str, str] | None = None) -> None:
        """Binds a pod as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        metadata = {"name": pod, "annotations": annotations or {}}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self._send("POST", f"{COLLECTIONS['Pod']}/{pod}/binding", json=binding)

    def patch(self, kind: str, name: str, change: Object, *, subresource: str = "") -> Object:
        """A merge patch (RFC 7386): null removes a field."""
        path = "/".join(filter(None, (COLLECTIONS[kind], name, subresource)))
        headers = {"Content-Type": "application/merge-patch+json"}
        return self._send("PATCH", path, content=json.dumps(change), headers=headers)

    def evict(self, pod: str) -> None:
        """Asks for an eviction, as `kubectl drain` does. 429 where a disruption budget does not allow it."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        self._send("POST", f"{COLLECTIONS['Pod']}/{pod}/eviction", json=eviction)

    def delete(self, kind: str, name: str, namespace: str = "", *, grace_s: int = 0) -> None:
        path = f"{collection(kind, namespace)}/{name}"
        self._send("DELETE", path, params={"gracePeriodSeconds": grace_s})

    def delete_all(self, kind: str) -> None:
        # No garbage collector runs here: without "Background" a Job would wait for it to orphan its pods.
        options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        self._send("DELETE", COLLECTIONS[kind], params=options)

    def clean_up(self) -> None:
        """Deletes all objects that tests create."""
        for kind in self._served(LEFT_BY_TESTS):
            self.delete_all(kind)
        # The controllers that remove their finalizers do not run now.
        kinds = ("Pod", "NativePodGroup", "ResourceClaim", "PersistentVolumeClaim", "PersistentVolume")
        for kind in self._served(kinds):
            for item in self.list(kind)["items"]:
                if item["metadata"].get("finalizers"):
                    self.patch(kind, item["metadata"]["name"], {"metadata": {"finalizers": None}})
        for item in self.list("PriorityClass")["items"]:
            if not item["metadata"]["name"].startswith("system-"):
                self.delete("PriorityClass", item["metadata"]["name"])

    def _served(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Those that this release of Kubernetes has."""
        asked = {kind: self._http.get(COLLECTIONS[kind], params={"limit": 1}) for kind in kinds}
        return tuple(kind for kind, answer in asked.items() if answer.status_code != httpx.codes.NOT_FOUND)

    def token(self, service_account: str, namespace: str = "") -> str:
        """A token that is valid for a day, longer than any soak: it is not renewed, as kubelet would."""
        spec = {"expirationSeconds": 24 * 3600}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"{collection('ServiceAccount', namespace)}/{service_account}/token"
        return str(self._send("POST", path, json=request)["status"]["token"])

    def watch(self, kind: str, resource_version: str, *, for_s: int = 300) -> Iterator[tuple[str, Object]]:
        """(type, object) of every change after `resource_version`, until the server ends the stream."""
        query = {"watch": "1", "resourceVersion": resource_version, "timeoutSeconds": str(for_s)}
        with self._http.stream("GET", COLLECTIONS[kind], params=query, timeout=for_s + 10) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                event = json.loads(line)
                yield event["type"], event["object"]

    def request(self, method: str, path: str, body: Object | None = None) -> Object:
        """Any request; a PATCH is a merge patch."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body)
        return self._send(method, path, content=content, headers={"Content-Type": kind})

    def _send(self, method: str, path: str, **request: Any) -> Object:
        response = self._http.request(method, path, **request)
        try:
            response.raise_for_status()
        except httpx.HTTPStatusError as problem:
            problem.add_note(response.text)
            raise
        answer: Object = response.json()
        return answer
