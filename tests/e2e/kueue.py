"""A real Kueue beside the control plane: its manager with its webhooks, on loopback, with all rights.

The binary is not part of this project. `STOWAGE_E2E_KUEUE` has its path; beside it, or in folders there, are
Kueue's manifests (`*.yaml`): at least its CRDs, as in a release's `manifests.yaml`. Where these have no
webhook configurations, the paths below are used.
"""

import base64
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import yaml

from .controlplane.api import NAMESPACE, Api, Object
from .controlplane.cluster import ControlPlane, answers
from .controlplane.process import Process, free_port

PROGRAM = os.environ.get("STOWAGE_E2E_KUEUE", "")
MISSING = "NO KUEUE: set STOWAGE_E2E_KUEUE to the path of its binary, with its manifests (CRDs) beside it"
SYSTEM = "kueue-system"
SERVICE, SECRET = "kueue-webhook-service", "kueue-webhook-server-cert"
GROUP = "/apis/kueue.x-k8s.io/v1beta2"
PLURALS = {
    "ClusterQueue": "clusterqueues",
    "Cohort": "cohorts",
    "ResourceFlavor": "resourceflavors",
    "Topology": "topologies",
    "WorkloadPriorityClass": "workloadpriorityclasses",
    "LocalQueue": "localqueues",
    "Workload": "workloads",
}
NAMESPACED = {"LocalQueue", "Workload"}
# Kueue's rotator writes its CA into these, so each must have a conversion webhook.
CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
MUTATED = {  # plural: group and version
    "jobs": ("batch", "v1"),
    "pods": ("", "v1"),
    "clusterqueues": ("kueue.x-k8s.io", "v1beta2"),
    "resourceflavors": ("kueue.x-k8s.io", "v1beta2"),
    "workloads": ("kueue.x-k8s.io", "v1beta2"),
}


class Kueue:
    """Runs Kueue during its `with` block. The control plane is for it alone: its objects stay."""

    def __init__(self, plane: ControlPlane, **gates: bool) -> None:
        self._api, self._certificates = plane.api, plane.directory / "kueue-certificates"
        self._certificates.mkdir()
        self._port, health = free_port(), free_port()
        self._url = f"http://127.0.0.1:{health}/readyz"
        file = plane.directory / "kueue.yaml"
        file.write_text(yaml.safe_dump(self._configuration(health)))
        command: list[str | Path] = [
            PROGRAM,
            f"--config={file}",
            f"--kubeconfig={plane.kubeconfig}",
        ]
        self._process = Process("kueue", command, log=plane.logs / "kueue.log", ready=self._ready)
        self._command = self._process.command
        self._set(gates)

    def __enter__(self) -> Self:
        self._install()
        self._process.start(within_s=180)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop()

    def restart(self, **gates: bool) -> None:
        """Start it again with these feature gates."""
        self._process.stop()
        self._set(gates)
        self._process.start(within_s=180)

    def _set(self, gates: dict[str, bool]) -> None:
        gates = {"VisibilityOnDemand": False} | gates  # it would serve an API, with certificates of its own
        flag = ",".join(f"{gate}={str(value).lower()}" for gate, value in gates.items())
        self._process.command = [*self._command, f"--feature-gates={flag}"]

    def _configuration(self, health: int) -> Object:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": SYSTEM,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 300, "burst": 600},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": SERVICE,
                "webhookSecretName": SECRET,
            },
            "integrations": {"frameworks": ["batch/job", "pod"]},
        }

    def _install(self) -> None:
        for crd in custom_resources():
            self._api.create(self._converted(crd))
        metadata = {"name": SYSTEM}
        self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        core = f"/api/v1/namespaces/{SYSTEM}"
        metadata = {"name": SECRET, "namespace": SYSTEM}
        self._api.request(
            "POST", f"{core}/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        )
        # The API server finds the webhooks behind this name, and checks the name in their certificate.
        service = {"type": "ExternalName", "externalName": "localhost"}
        metadata = {"name": SERVICE, "namespace": SYSTEM}
        self._api.request(
            "POST",
            f"{core}/services",
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
        )
        for one in webhook_configurations():
            plural = one["kind"].lower() + "s"
            for webhook in one["webhooks"]:
                webhook["clientConfig"]["service"]["port"] = self._port
            self._api.request("POST", f"/apis/admissionregistration.k8s.io/v1/{plural}", one)

    def _converted(self, crd: Object) -> Object:
        if crd["spec"]["names"]["plural"] in CONVERTED:
            target = {"name": SERVICE, "namespace": SYSTEM, "path": "/convert", "port": self._port}
            webhook = {"clientConfig": {"service": target}, "conversionReviewVersions": ["v1"]}
            crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        return crd

    def _ready(self) -> bool:
        """As kubelet does, writes the Secret with the certificate into the volume, each file at once."""
        secret = self._api.request("GET", f"/api/v1/namespaces/{SYSTEM}/secrets/{SECRET}")
        for name, content in sorted((secret.get("data") or {}).items(), reverse=True):  # tls.crt is last
            file, written = self._certificates / name, self._certificates / f".{name}"
            if not file.exists():
                written.write_bytes(base64.b64decode(content))
                written.rename(file)
        return answers(self._url)


def documents() -> Iterator[Object]:
    """The objects in the manifests beside the binary."""
    for file in sorted(Path(PROGRAM).parent.rglob("*.yaml")):
        for one in yaml.load_all(file.read_text(), yaml.CSafeLoader):
            if isinstance(one, dict) and "kind" in one:
                yield one


def custom_resources() -> list[Object]:
    """Kueue's CRDs. One that stands in several files counts once."""
    found = (one for one in documents() if one["kind"] == "CustomResourceDefinition")
    return list({one["metadata"]["name"]: one for one in found}.values())


def webhook_configurations() -> list[Object]:
    """Those of the manifests, else what this module needs, under the names that Kueue's rotator looks for."""
    names = {
        "MutatingWebhookConfiguration": "kueue-mutating-webhook-configuration",
        "ValidatingWebhookConfiguration": "kueue-validating-webhook-configuration",
    }
    found = {one["kind"]: one for one in documents() if one["kind"] in names and "service" in str(one)}
    for kind, name in names.items():
        webhooks = [_webhook(*one) for one in MUTATED.items()] if kind.startswith("Mutating") else []
        own = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "webhooks": webhooks}
        one = found.setdefault(kind, own)
        one["metadata"] = {"name": name}
        for webhook in one["webhooks"]:
            webhook["clientConfig"]["service"] |= {"name": SERVICE, "namespace": SYSTEM}
    return list(found.values())


def _webhook(plural: str, group_version: tuple[str, str]) -> Object:
    group, version = group_version
    path = f"/mutate-{group.replace('.', '-')}-{version}-{plural[:-1]}"
    exempt = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", SYSTEM]}
    rule = {"apiGroups": [group], "apiVersions": [version], "resources": [plural], "operations": ["CREATE"]}
    return {
        "name": f"m{plural[:-1]}.kb.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"service": {"path": path}},
        "rules": [rule],
        "namespaceSelector": {"matchExpressions": [exempt]},
    }


def path(kind: str, name: str = "") -> str:
    """The path of Kueue's objects of this kind, or of one of them."""
    namespace = f"/namespaces/{NAMESPACE}" if kind in NAMESPACED else ""
    return f"{GROUP}{namespace}/{PLURALS[kind]}" + (f"/{name}" if name else "")


def create(api: Api, kind: str, name: str, spec: Object, **more: object) -> None:
    metadata: Object = {"name": name} | ({"namespace": NAMESPACE} if kind in NAMESPACED else {})
    one = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata} | more
    api.request("POST", path(kind), one | ({"spec": spec} if spec else {}))


def queue(
    api: Api, name: str, gpus: int, *, flavor: str = "any", cohort: str = "", **preemption: str
) -> None:
    """A ClusterQueue with this many GPUs, and a LocalQueue of the same name."""
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": gpus}] + [
        {"name": amount, "nominalQuota": large} for amount, large in (("cpu", "1000"), ("memory", "10Ti"))
    ]
    covered = [one["name"] for one in resources]
    group = {"coveredResources": covered, "flavors": [{"name": flavor, "resources": resources}]}
    spec: Object = {"namespaceSelector": {}, "resourceGroups": [group]}
    spec |= {"cohortName": cohort} if cohort else {}
    spec |= {"preemption": preemption} if preemption else {}
    create(api, "ClusterQueue", name, spec)
    create(api, "LocalQueue", name, {"clusterQueue": name})


def workloads(api: Api) -> dict[str, set[str]]:
    """The conditions that hold, by the name of the job or the pod that owns the Workload."""
    return {
        one["metadata"]["ownerReferences"][0]["name"]: {
            condition["type"]
            for condition in one.get("status", {}).get("conditions", ())
            if condition["status"] == "True"
        }
        for one in api.request("GET", path("Workload"))["items"]
        if one["metadata"].get("ownerReferences")
    }


def clean_up(api: Api) -> None:
    """Deletes what a test has made of Kueue's kinds, the workloads and queues first."""
    for kind in ("Workload", "LocalQueue", "ClusterQueue", "Cohort", "ResourceFlavor", "Topology"):
        for one in api.request("GET", path(kind))["items"]:
            name = one["metadata"]["name"]
            with suppress(httpx.HTTPStatusError):  # gone with another object
                api.request("PATCH", path(kind, name), {"metadata": {"finalizers": None}})
                api.request("DELETE", path(kind, name))
    for one in api.request("GET", path("WorkloadPriorityClass"))["items"]:
        api.request("DELETE", path("WorkloadPriorityClass", one["metadata"]["name"]))
