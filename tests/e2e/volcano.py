"""Volcano's scheduler, a real one, with the configuration of deploy/volcano."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import yaml

from .controlplane.api import NAMESPACE, Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import Process, eventually, free_port
from .stowage import manifests
from .workload import pod

PROGRAM = os.environ.get("STOWAGE_E2E_VOLCANO", "")
MISSING = "NO VOLCANO: set STOWAGE_E2E_VOLCANO to the path of vc-scheduler, with crds/ beside it"
GROUPS = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{NAMESPACE}/podgroups"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


def configuration(url: str | None, **arguments: object) -> str:
    """The shipped configuration, with Stowage at ``url`` and these arguments changed; None: no extender."""
    (config,) = manifests("volcano/scheduler.yaml")
    document: Object = yaml.safe_load(config["data"]["volcano-scheduler.conf"])
    (tier,) = document["tiers"]
    if url is None:
        tier["plugins"] = [plugin for plugin in tier["plugins"] if plugin["name"] != "extender"]
    for plugin in tier["plugins"]:
        if plugin["name"] == "extender":
            plugin["arguments"]["extender.urlPrefix"] = f"{url}/volcano"
            plugin["arguments"] |= {f"extender.{key}": value for key, value in arguments.items()}
    return yaml.safe_dump(document, sort_keys=False)


@contextmanager
def scheduler(cluster: ControlPlane, configuration: str) -> Iterator[Process]:
    """vc-scheduler with this configuration. By default it has one session each second; here five."""
    file = cluster.directory / "volcano-scheduler.conf"
    file.write_text(configuration)
    health, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
    flags: dict[str, object] = {
        "kubeconfig": cluster.kubeconfig,
        "scheduler-conf": file,
        "schedule-period": "200ms",
        "leader-elect": "false",
        "enable-healthz": "true",
        "healthz-address": health,
        "listen-address": metrics,
        "cache-dumper": "false",
        "v": 3,
    }
    command: list[str | Path] = [PROGRAM, *(f"--{name}={value}" for name, value in flags.items())]
    with cluster.process("vc-scheduler", command, ready=f"http://{health}/healthz") as running:
        eventually(lambda: {"root", "default"} <= _queues(cluster.api), within_s=30, what="queues exist")
        for name in ("root", "default"):
            _open(cluster.api, name)
        yield running


@contextmanager
def resources(api: Api) -> Iterator[None]:
    """Volcano's kinds, from the directory beside the binary, and its root queue."""
    definitions = [
        definition
        for file in sorted((Path(PROGRAM).parent / "crds").glob("*.yaml"))
        for definition in yaml.safe_load_all(file.read_text())
        if definition
    ]
    try:
        for definition in definitions:
            api.create(definition)
        eventually(lambda: served(api), within_s=60, what="Volcano's kinds are served")
        yield
    finally:
        for definition in definitions:
            with suppress(httpx.HTTPStatusError):
                api.delete("CustomResourceDefinition", definition["metadata"]["name"])


def served(api: Api) -> bool:
    try:
        api.request("GET", GROUPS)
        api.request("GET", QUEUES)
    except httpx.HTTPStatusError:
        return False
    return True


def group(api: Api, name: str, members: int, *, queue: str = "default", priority_class: str = "") -> None:
    """Creates a PodGroup of which so many members must run together."""
    spec: Object = {"minMember": members, "queue": queue}
    if priority_class:
        spec["priorityClassName"] = priority_class
    metadata = {"name": name, "namespace": NAMESPACE}
    one = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata}
    api.request("POST", GROUPS, one | {"spec": spec})


def queue(api: Api, name: str, *, weight: int = 1) -> None:
    metadata = {"name": name}
    spec = {"weight": weight, "reclaimable": True, "parent": "root"}
    one = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": metadata, "spec": spec}
    api.request("POST", QUEUES, one)
    _open(api, name)


def _open(api: Api, queue: str) -> None:
    """What Volcano's controllers do, which do not run here."""
    api.request("PATCH", f"{QUEUES}/{queue}/status", {"status": {"state": "Open"}})


def _queues(api: Api) -> set[str]:
    return {queue["metadata"]["name"] for queue in api.request("GET", QUEUES)["items"]}


def member(
    name: str,
    of: str,
    resources: dict[str, int],
    *,
    on: str | None = None,
    priority_class: str | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
) -> Object:
    """A pod of a PodGroup, which may be evicted as far as Volcano is concerned."""
    notes = {"scheduling.k8s.io/group-name": of, "volcano.sh/preemptable": "true"} | (annotations or {})
    return pod(
        name,
        resources,
        scheduler="volcano",
        on=on,
        priority_class=priority_class,
        annotations=notes,
        labels=labels,
    )
