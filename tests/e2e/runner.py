"""The part of kubelet that kwok leaves out: starts a bound pod's command as a process, and stops it in time.

It runs the pods with the label `RUNS`, which kwok's stages leave alone. Of a pod it understands one container
with `command`, `args` and `env`, `restartPolicy: Never`, and volumes: each is a directory that survives the
pod, and stands in for the mount path wherever that path appears in the command or the environment. A test
puts there what a ConfigMap would contain.
"""

import os
import signal
import subprocess
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import httpx

from .background import PodWatch
from .controlplane.api import Api, Object

RUNS = "e2e.stowage.dev/runs-as-process"
TERMINAL = ("Succeeded", "Failed")


class Container:
    """One process. `done` is set when it has ended and its pod's status says so."""

    def __init__(self, api: Api, pod: Object, directory: Path) -> None:
        self._api = api
        self._pod = pod
        self._started = _now()
        self._deleting = threading.Event()
        command, environment = _resolved(pod, directory)
        with (directory / f"{pod['metadata']['name']}.log").open("ab") as log:
            self._child = subprocess.Popen(
                command, cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT, process_group=0
            )
        self._thread = threading.Thread(target=self._run, name=pod["metadata"]["name"])
        self._thread.start()

    def terminate(self, grace_s: float) -> None:
        """Sends SIGTERM, and SIGKILL after the grace period; then the pod is removed from the API."""
        if not self._deleting.is_set():
            self._deleting.set()
            self._signal(signal.SIGTERM)
            timer = threading.Timer(grace_s, self._signal, [signal.SIGKILL])
            timer.daemon = True
            timer.start()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._thread.join()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def _run(self) -> None:
        # The API server is away or the pod is gone: nobody reads the status.
        with suppress(httpx.HTTPError):
            self._report("Running", {"running": {"startedAt": self._started}})
        code = self._child.wait()
        code = 128 - code if code < 0 else code  # as a shell and kubelet count signals
        ended = {"exitCode": code, "startedAt": self._started, "finishedAt": _now()}
        with suppress(httpx.HTTPError):
            # As kubelet does, also for a pod that is being deleted.
            self._report("Failed" if code else "Succeeded", {"terminated": ended})
        if self._deleting.is_set():
            _remove(self._api, self._pod)

    def _report(self, phase: str, state: Object) -> None:
        ready = str(phase == "Running")
        (spec,) = self._pod["spec"]["containers"]
        status = {
            "phase": phase,
            "startTime": self._started,
            "conditions": [
                *self._conditions_of_others(),
                *(
                    {"type": kind, "status": ready, "lastTransitionTime": _now()}
                    for kind in ("Initialized", "ContainersReady", "Ready")
                ),
            ],
            "containerStatuses": [
                {
                    **{"name": spec["name"], "image": spec["image"], "imageID": ""},
                    **{"ready": phase == "Running", "restartCount": 0, "state": state},
                }
            ],
        }
        self._api.patch("Pod", self._pod["metadata"]["name"], {"status": status}, subresource="status")

    def _conditions_of_others(self) -> list[Object]:
        """PodScheduled, DisruptionTarget: a merge patch would remove them."""
        current = self._api.get("Pod", self._pod["metadata"]["name"])["status"].get("conditions", ())
        return [one for one in current if one["type"] not in ("Initialized", "ContainersReady", "Ready")]


class Runner(PodWatch):
    """Runs the pods with the label `RUNS` while its `with` block runs. `directory` has their volumes, each
    with the name of the claim or the volume, and their output (`<pod>.log`)."""

    def __init__(self, api: Api, directory: Path) -> None:
        super().__init__(api, "runner")
        self._directory = directory
        self._containers: dict[str, Container] = {}

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, problem, trace)
        for container in self._containers.values():
            container.kill()

    def _take_list(self, pods: list[Object]) -> None:
        for pod in pods:
            self._take("ADDED", pod)

    def _take(self, kind: str, pod: Object) -> None:
        if RUNS not in pod["metadata"].get("labels", {}) or not pod["spec"].get("nodeName"):
            return
        container = self._containers.get(pod["metadata"]["uid"])
        if kind == "DELETED":  # by force, or after its end
            if container is not None:
                container.kill()
        elif "deletionTimestamp" in pod["metadata"]:
            if container is None or pod["status"]["phase"] in TERMINAL:
                _remove(self._api, pod)
            else:
                container.terminate(pod["metadata"]["deletionGracePeriodSeconds"])
        elif container is None and pod["status"]["phase"] not in TERMINAL:
            self._containers[pod["metadata"]["uid"]] = Container(self._api, pod, self._directory)


def _remove(api: Api, pod: Object) -> None:
    with suppress(httpx.HTTPError):  # it is gone
        api.delete("Pod", pod["metadata"]["name"], grace_s=0)


def _resolved(pod: Object, directory: Path) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of the pod's container, with local paths."""
    (spec,) = pod["spec"]["containers"]
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
    paths = {}
    for mount in spec.get("volumeMounts", ()):
        claim = volumes[mount["name"]].get("persistentVolumeClaim", {}).get("claimName")
        local = directory / (claim or mount["name"])
        local.mkdir(exist_ok=True)
        paths[mount["mountPath"]] = str(local)

    def local_text(text: str) -> str:
        for path, local in paths.items():
            text = text.replace(path, local)
        return text

    given = {entry["name"]: local_text(_value(entry, pod)) for entry in spec.get("env", ())}
    command = [local_text(part) for part in (*spec["command"], *spec.get("args", ()))]
    return command, {"PATH": os.environ["PATH"]} | given


def _value(entry: Object, pod: Object) -> str:
    """Of an environment variable: a text, or a field of the metadata."""
    if "valueFrom" not in entry:
        return str(entry.get("value", ""))
    return str(pod["metadata"][entry["valueFrom"]["fieldRef"]["fieldPath"].removeprefix("metadata.")])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
