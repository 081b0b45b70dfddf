"""Nodes whose MIG layout a MIG manager changes, and what does its work in tests."""

from __future__ import annotations

from typing import Any

from tests.extender.apiserver import ApiServer
from tests.extender.apistore import Manifest
from tests.extender.evictor.replica import pod

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
CONFIG, STATE, CHANGE = "nvidia.com/mig.config", "nvidia.com/mig.config.state", "stowage.dev/mig-change"
LAYOUTS = {
    "all-disabled": {GPU: 8, SMALL: 0},
    "all-1g.10gb": {GPU: 0, SMALL: 56},
    "all-7g.80gb": {GPU: 0, SMALL: 0, "nvidia.com/mig-7g.80gb": 8},
}


def mig_node(name: str, layout: str = "all-1g.10gb", **more: Any) -> Manifest:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/mig.strategy": "mixed",
        CONFIG: layout,
        STATE: "success",
    }
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "labels": labels},
        "spec": more,
        "status": _status(LAYOUTS[layout]),
    }


def _status(devices: dict[str, int]) -> Manifest:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"} | {name: str(n) for name, n in devices.items()}
    return {"allocatable": amounts, "capacity": amounts}


def small(name: str, on: str = "") -> Manifest:
    """A pod with one instance."""
    return _asking(pod(name, on, priority=0), {SMALL: "1"})


def large(name: str, on: str = "") -> Manifest:
    """A pod with eight GPUs."""
    return _asking(pod(name, on, priority=0), {GPU: "8"})


def _asking(manifest: Manifest, devices: dict[str, str]) -> Manifest:
    requests = {"cpu": "1", "memory": "1Gi"} | devices
    manifest["spec"]["containers"] = [
        {"name": "main", "resources": {"requests": requests, "limits": requests}}
    ]
    return manifest


class MigManager:
    """Sees each new value of the label, and does what it says at the next ``step``. ``fails``: layouts that
    it cannot apply; ``stalls``: those with which it stays in the state ``pending`` without any device;
    ``is_gone``: it does nothing."""

    def __init__(self, api: ApiServer) -> None:
        self._api, self._seen = api, dict[str, str]()
        self.fails, self.stalls, self.is_gone = set[str](), set[str](), False
        self.log: list[tuple[str, str]] = []

    def step(self) -> None:
        for name, node in list(self._api.nodes.objects.items()):
            labels = node["metadata"].get("labels", {})
            wanted, seen = labels.get(CONFIG), self._seen.setdefault(name, labels.get(CONFIG, ""))
            if self.is_gone or wanted is None:
                continue
            if wanted != seen:
                self._seen[name] = wanted
                self.log.append((name, wanted))
                self._put(node, "pending", {GPU: 0, SMALL: 0})
            elif labels.get(STATE) == "pending" and wanted not in self.stalls:
                if wanted in self.fails:
                    self._put(node, "failed", {GPU: 0, SMALL: 0})
                else:
                    self._put(node, "success", LAYOUTS[wanted])

    def _put(self, node: Manifest, state: str, devices: dict[str, int]) -> None:
        labels = node["metadata"]["labels"] | {STATE: state}
        self._api.put(node | {"metadata": node["metadata"] | {"labels": labels}, "status": _status(devices)})
