"""The MIG manager's ConfigMaps, and which of them counts for a node.

The MIG manager of a node reads one file: a ConfigMap that all nodes share, or its own, which it writes as
``<node>-mig-config`` (NVIDIA/mig-parted at bd7160f4, cmd/nvidia-mig-manager/main.go). So layouts of two
ConfigMaps are never mixed. Where several are for the same nodes, the one of that name counts, else the first
by namespace and name.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping

from extender.inventory.mig_manager import LAYOUT_LABEL
from extender.k8s.device_objects import MigLayouts
from extender.k8s.objects import Node

_log = logging.getLogger(__name__)


class MigLayoutTable:
    """ConfigMaps by ``namespace/name``. ``listed``: whether Stowage follows them, so that one that is not
    known is not there."""

    def __init__(self) -> None:
        self.listed = False
        self.by_name: dict[str, MigLayouts] = {}
        self._by_node: defaultdict[str, dict[str, MigLayouts]] = defaultdict(dict)  # "": for all nodes
        self._counting: dict[str, MigLayouts] = {}

    def put(self, record: MigLayouts) -> None:
        known = self.by_name.get(record.name)
        if record.problem and (known is None or known.problem != record.problem):
            _log.warning("%s: %s", record.name, record.problem)
        self.remove(record.name)
        self.by_name[record.name] = self._by_node[record.node][record.name] = record
        self._choose(record.node)

    def remove(self, name: str) -> None:
        if known := self.by_name.pop(name, None):
            del self._by_node[known.node][name]
            self._choose(known.node)

    def on(self, node: str) -> MigLayouts | None:
        """The layouts that a node can have: its own, or else those for all nodes."""
        return self._counting.get(node) or self._counting.get("")

    def problems(self, nodes: Mapping[str, Node]) -> Iterator[tuple[str, str]]:
        """Which layouts of these nodes are missing, unreadable or in doubt, and why."""
        if missing := "the MIG manager's configmap is not there" if self.listed else "":
            if not self.by_name:
                yield _layouts_of(""), missing
            elif "" not in self._counting:
                without = (node for node in nodes.values() if node.name not in self._counting)
                yield from ((_layouts_of(one.name), missing) for one in without if LAYOUT_LABEL in one.labels)
        for node, layouts in self._counting.items():
            count = len(self._by_node[node])
            problem = layouts.problem and f"{layouts.name}: {layouts.problem}"
            doubt = f"{layouts.name} counts of {count} configmaps" if count > 1 else ""
            if (problem or doubt) and (not node or node in nodes):
                yield _layouts_of(node), "; ".join(filter(None, (problem, doubt)))

    def _choose(self, node: str) -> None:
        if found := self._by_node[node]:
            own = f"/{node}-mig-config"
            self._counting[node] = found[min(found, key=lambda name: (not name.endswith(own), name))]
        else:
            del self._by_node[node]
            self._counting.pop(node, None)


def _layouts_of(node: str) -> str:
    return f"MIG layouts of {node or 'all nodes'}"
