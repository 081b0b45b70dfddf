"""An auditor that sits at the API and recounts a node whenever a pod is bound to it."""

import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import httpx

from .books import Books
from .controlplane.api import Api, Object

WINDOW_S = 2  # after which a watch is opened anew, and the end of the audit is noticed


class Audit:
    """Follows all pods from its `with` statement on, through restarts of the API server.

    `pods` are the pods as last seen, by UID; `bound` the node that each was bound to; `findings` what must
    not happen, in words.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit")
        self._books = Books(api.list("Node")["items"])
        self.pods: dict[str, Object] = {}
        self.bound: dict[str, str] = {}
        self.findings: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def settled(self) -> bool:
        """Whether every pod runs, or was found unschedulable by a scheduler that had seen all nodes."""
        return bool(self.pods) and all(runs(pod) or unschedulable(pod) for pod in list(self.pods.values()))

    def _run(self) -> None:
        while not self._over.is_set():
            # The API server is away, or (410) has forgotten the version that the watch would go on from.
            with suppress(httpx.TransportError, httpx.HTTPStatusError):
                self._follow()
            self._over.wait(0.1)

    def _follow(self) -> None:
        listed = self._api.list("Pod")
        self._books = Books(self._books.nodes.values())
        for pod in listed["items"]:
            self._see(pod)
        for node in self._books.nodes:
            self._recount(node, "what the list shows")
        version = listed["metadata"]["resourceVersion"]
        while not self._over.is_set():
            for kind, pod in self._api.watch("Pod", version, for_s=WINDOW_S):
                if kind == "ERROR":
                    return
                version = pod["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self._forget(pod)
                elif self._see(pod):
                    self._recount(pod["spec"]["nodeName"], pod["metadata"]["name"])

    def _see(self, pod: Object) -> bool:
        """Whether the pod is bound, and was not when it was last seen."""
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        self.pods[uid] = pod
        self._books.put(pod)
        if node is None or self.bound.get(uid) == node:
            return False
        if uid in self.bound:
            self.findings.append(f"{pod['metadata']['name']} was moved from {self.bound[uid]} to {node}")
        self.bound[uid] = node
        return True

    def _recount(self, node: str, occasion: str) -> None:
        if excess := self._books.excess(node):
            self.findings.append(f"{node} is over-committed with {occasion}: {excess}")

    def _forget(self, pod: Object) -> None:
        self.pods.pop(pod["metadata"]["uid"], None)
        self._books.remove(pod)


def runs(pod: Object) -> bool:
    return bool(pod["status"]["phase"] == "Running")


def unschedulable(pod: Object) -> bool:
    """Fits nowhere, says the scheduler; an attempt that failed for another reason is a SchedulerError."""
    return any(
        condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
        for condition in pod["status"].get("conditions", ())
    )
