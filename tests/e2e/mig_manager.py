"""A script in the place of NVIDIA's MIG manager, its device plugin and kubelet: a label comes in, and a state
and other devices come out after some seconds."""

import time

from .background import InThread
from .controlplane.api import Api, Object
from .rush import GPU, LABEL_SETS, SMALL
from .workload import node

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
DEVICES = {"all-disabled": {GPU: 8, SMALL: 0}, "all-1g.10gb": {GPU: 0, SMALL: 56}}
NOTHING = {GPU: 0, SMALL: 0}


def mig_node(name: str, layout: str) -> Object:
    labels = {CONFIG: layout, STATE: "success", "nvidia.com/mig.strategy": "mixed"}
    return node(name, DEVICES[layout], labels=LABEL_SETS["h100-sxm-8-whole"] | labels)


class MigManager(InThread):
    """Works during its `with` block. `applied`: the nodes and layouts that it has seen the label change to.
    `silent`: it does nothing."""

    def __init__(self, api: Api, *, seconds: float = 2.0, silent: bool = False) -> None:
        super().__init__("MIG manager")
        self.applied: list[tuple[str, str]] = []
        self._api, self._seconds, self._silent = api, seconds, silent
        self._has = {one["metadata"]["name"]: one["metadata"]["labels"][CONFIG] for one in self._nodes()}
        self._due: dict[str, tuple[float, str]] = {}

    def _nodes(self) -> list[Object]:
        found: list[Object] = self._api.list("Node")["items"]
        return found

    def _run(self) -> None:
        while not self._over.wait(0.3):
            for one in () if self._silent else self._nodes():
                self._follow(one["metadata"]["name"], one["metadata"]["labels"][CONFIG])

    def _follow(self, name: str, wanted: str) -> None:
        if self._has[name] != wanted:
            self._has[name] = wanted
            self.applied.append((name, wanted))
            self._due[name] = time.monotonic() + self._seconds, wanted
            self._show(name, "pending", NOTHING)
        due, layout = self._due.get(name, (float("inf"), ""))
        if time.monotonic() >= due:
            del self._due[name]
            self._show(name, "success", DEVICES[layout])

    def _show(self, name: str, state: str, devices: dict[str, int]) -> None:
        amounts = {resource: str(count) for resource, count in devices.items()}
        status = {"capacity": amounts, "allocatable": amounts}
        if state == "pending":  # the device plugin goes first, and comes back last
            self._api.patch("Node", name, {"metadata": {"labels": {STATE: state}}})
        self._api.patch("Node", name, {"status": status}, subresource="status")
        if state != "pending":
            self._api.patch("Node", name, {"metadata": {"labels": {STATE: state}}})
