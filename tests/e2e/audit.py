"""An audit that watches the API and recounts a node whenever a pod is bound to it."""

from .background import PodWatch
from .books import Books
from .controlplane.api import Api, Object


class Audit(PodWatch):
    """Watches all pods while its `with` block runs, across restarts of the API server.

    `pods` are the pods as last seen, by UID. `bound` has the node that each was bound to. `findings` describe
    what must not happen.
    """

    def __init__(self, api: Api) -> None:
        super().__init__(api, "audit")
        self._books = Books(api.list("Node")["items"])
        self.pods: dict[str, Object] = {}
        self.bound: dict[str, str] = {}
        self.findings: list[str] = []

    def settled(self) -> bool:
        """Whether every pod runs, or a scheduler that had seen all nodes found it unschedulable."""
        return bool(self.pods) and all(runs(pod) or unschedulable(pod) for pod in list(self.pods.values()))

    def _take_list(self, pods: list[Object]) -> None:
        self._books = Books(self._books.nodes.values())
        for pod in pods:
            self._see(pod)
        for node in self._books.nodes:
            self._recount(node, "the listed pods")

    def _take(self, kind: str, pod: Object) -> None:
        if kind == "DELETED":
            self._forget(pod)
        elif self._see(pod):
            self._recount(pod["spec"]["nodeName"], pod["metadata"]["name"])

    def _see(self, pod: Object) -> bool:
        """Record the pod. Whether it is bound now and was not before."""
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
    """Whether the scheduler found no node. An attempt that fails for another reason is a SchedulerError."""
    return any(
        condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
        for condition in pod["status"].get("conditions", ())
    )
