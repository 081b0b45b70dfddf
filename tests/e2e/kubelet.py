"""What kubelets do for the pods of an installed Deployment: processes, probes, and an end in order.

The pods are those that kube-controller-manager makes of the Deployment and a default kube-scheduler places.
They have the label `runner.RUNS`, so that kwok leaves them alone.
"""

import threading
from contextlib import suppress

import httpx

from .background import InThread
from .controlplane.api import Object
from .controlplane.cluster import ControlPlane
from .installed import Containers, containers, contents
from .runner import RUNS
from .tools import NAMESPACE, Tools

LABEL = "podLabels." + RUNS.replace(".", r"\.") + "=pod"  # as a value of the chart
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LOOK_S = 0.2
PROBE_S = 1.0  # the shortest period that a probe may have


class Kubelet(InThread):
    """Runs them while its `with` block runs. `replicas` are the containers of the pods that have started."""

    def __init__(self, plane: ControlPlane, tools: Tools) -> None:
        super().__init__("kubelet")
        self._plane, self._tools, self._api = plane, tools, plane.api
        self._threads: dict[str, threading.Thread] = {}
        self._pods: dict[str, Object] = {}
        self._names: dict[str, Containers] = {}
        self.replicas: list[Containers] = []

    def stop(self) -> None:
        super().stop()
        for thread in self._threads.values():
            thread.join()

    def pods(self) -> list[str]:
        """The names of the pods that run and are not being deleted."""
        listed = list(self._pods.values())
        names = [one["metadata"]["name"] for one in listed if "deletionTimestamp" not in one["metadata"]]
        return [name for name in names if name in self._names]

    def leader(self) -> str:
        """The node of a pod that is ready, "" if there is none. Behind a Service only the leader is ready."""
        found = [one for one in list(self._pods.values()) if self._is_ready(one["metadata"]["name"])]
        return str(found[0]["spec"]["nodeName"]) if found else ""

    def _is_ready(self, pod: str) -> bool:
        one = self._names.get(pod)
        return one is not None and one in self.replicas and one.ready()

    def nodes(self) -> set[str]:
        """Where the pods run that are ready."""
        ready = [one for one in list(self._pods.values()) if self._is_ready(one["metadata"]["name"])]
        return {one["spec"]["nodeName"] for one in ready if "deletionTimestamp" not in one["metadata"]}

    def refresh(self) -> None:
        """Updates the mounted Secrets and ConfigMaps; a real kubelet does it within two minutes."""
        for pod in list(self._pods.values()):
            if one := self._names.get(pod["metadata"]["name"]):
                for volume in pod["spec"]["volumes"]:
                    if files := contents(self._tools, volume):
                        one.mounts[volume["name"]].write(**files)

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            listed = self._api.request("GET", PODS)["items"]
            self._pods = {one["metadata"]["uid"]: one for one in listed if one["spec"].get("nodeName")}
            for uid, pod in self._pods.items():
                if uid not in self._threads:
                    self._threads[uid] = threading.Thread(target=self._live, args=(pod,))
                    self._threads[uid].start()

    def _live(self, pod: Object) -> None:
        """The life of a pod, from its start to its end."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        one = containers(self._plane, self._tools, pod["spec"], name)
        one.start()
        self._names[name] = one
        self.replicas.append(one)
        try:
            self._probe(uid, name, one)
            deleted = self._pods.get(uid)
            if deleted and not self._over.is_set():
                waits = pre_stop_s(deleted)
                self._over.wait(waits)
                one.stop(within_s=deleted["metadata"]["deletionGracePeriodSeconds"] - waits)
        finally:
            one.stop()
            self.replicas.remove(one)
        with suppress(httpx.HTTPStatusError):  # it is gone
            self._api.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def _probe(self, uid: str, name: str, one: Containers) -> None:
        """Writes into the status whether the pod is ready, until it is deleted."""
        was = None
        while not self._over.wait(PROBE_S):
            pod = self._pods.get(uid)
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                return
            if (ready := one.ready()) != was:
                with suppress(httpx.HTTPStatusError):  # it is gone
                    self._api.request("PATCH", f"{PODS}/{name}/status", {"status": status(pod, ready)})
                was = ready


def pre_stop_s(pod: Object) -> float:
    """For how long the hooks of this pod sleep. They all begin at the same time."""
    every = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    hooks = [one.get("lifecycle", {}).get("preStop", {}) for one in every]
    return float(max(hook.get("sleep", {}).get("seconds", 0) for hook in hooks))


def status(pod: Object, ready: bool) -> Object:
    """That of a running pod. Conditions of others stay."""
    mine = ("Initialized", "ContainersReady", "Ready")
    kept = [one for one in pod["status"].get("conditions", ()) if one["type"] not in mine]
    new = [{"type": kind, "status": str(ready or kind == "Initialized")} for kind in mine]
    return {"phase": "Running", "conditions": [*kept, *new]}
