"""An object costs little, is spoken of in few words, harms no other, and is gone with its deletion, whatever
its author writes. ``objects.py`` is the table of what is tried.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from extender.k8s.objects import Kind
from tests.examples import examples, some
from tests.extender.dra.claims import many, request, selectors
from tests.hostile.cluster import (
    EVENT,
    HAMI,
    NAMES,
    OWN,
    PLAIN,
    SAID,
    SHOWN,
    Budget,
    Cluster,
    Manifest,
    steps,
    usual_nodes,
    usual_pod,
)
from tests.hostile.objects import TABLES, claim, node, usual

SHARED = usual_nodes()[2]
NORMAL: dict[Kind, Manifest] = dict(usual()) | {
    "Node": SHARED | {"metadata": SHARED["metadata"] | {"name": "usual"}},
    "Device": {"metadata": {"name": "u"}},
    "ResourceClaim": claim("normal", many(*[request(**selectors("true"))] * 4)),
}
"""What the cost of an object is compared with, if it is no pod."""
ASKS: dict[Kind, Manifest] = {
    "ResourceClaim": usual_pod("asks", {}, resourceClaims=[{"name": "c", "resourceClaimName": "hostile"}]),
    "ResourceSlice": usual_pod("asks", {}, resourceClaims=[{"name": "c", "resourceClaimName": "usual"}]),
    "DeviceClass": usual_pod("asks", {"example.com/gpu": "1"}),
}
"""A pod that makes Stowage read the object."""


class Tried:
    """A cluster with an object of each kind, and the problems with what was tried in it."""

    log: pytest.LogCaptureFixture

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner, self.problems = runner, list[str]()
        self.renew()

    def begin(self, log: pytest.LogCaptureFixture) -> None:
        """The next object. The cluster is a new one if there were problems with the last."""
        self.log = log
        if self.problems:
            self.problems.clear()
            self.renew()

    def renew(self) -> None:
        self.cluster = Cluster(self.runner)
        for kind, manifest in usual():
            self.cluster.hear(kind, "ADDED", manifest)
        self.budget = Budget(self.cluster)
        asked = ASKS["ResourceSlice"]
        self.cluster.ask_all(asked)
        self.usual_search = steps(lambda: self.cluster.ask_all(asked))

    def hear(self, kind: Kind, change: str, manifest: Manifest) -> bool:
        """Whether the event was handled in its budget; if not, the cluster is a new one."""
        self.log.clear()
        problem = self.budget.of_event(kind, change, manifest, NORMAL.get(kind))
        if len(self.log.text) > 2 * SAID:
            self.problems.append(f"{change}: {len(self.log.text)} characters of log")
        if any(len(text) > SAID for text in self.cluster.engine.state.problems.values()):
            self.problems.append(f"{change}: a long problem")
        if problem:
            self.problems.append(f"{change}: {problem}")
            self.renew()
        return not problem

    def ask(self, pod: Manifest) -> None:
        self.log.clear()
        if problem := self.budget.of_verbs(pod):
            self.problems.append(f"verbs: {problem}")
            return
        self.shown(f"/debug/pods/d/{pod['metadata']['name']}")
        explained = self.cluster.send("POST", "/debug/explain", json.dumps(pod).encode())
        said = explained.json()["error"] if explained.status_code == 200 else explained.text
        if len(said) > SAID or len(self.log.text) > 2 * SAID:
            self.problems.append(f"explain: {len(said)} and {len(self.log.text)} characters")

    def shown(self, path: str, most: int = SHOWN) -> None:
        response = self.cluster.send("GET", path)
        if len(response.content) > (most if response.status_code == 200 else SAID):
            self.problems.append(f"{path}: {len(response.content)} characters")

    def search(self, pod: Manifest) -> None:
        """A search has limits of its own for each node, not a multiple of the simplest search."""
        steps(lambda: self.cluster.ask_all(pod), len(NAMES) * EVENT * self.usual_search)
        self.shown(f"/debug/pods/d/{pod['metadata']['name']}")


def tried(kind: Kind, tries: Tried, manifest: Manifest) -> Iterator[bool]:
    """Each step of what is tried with an object; false ends it."""
    yield tries.hear(kind, "ADDED", manifest)
    if kind == "Pod":
        tries.ask(manifest)
        for node in (HAMI, OWN):
            running = manifest | {"spec": manifest["spec"] | {"nodeName": node}}
            yield tries.hear(kind, "MODIFIED", running)
    elif kind in ASKS:
        tries.search(ASKS[kind])
    else:
        tries.shown("/debug/nodes/hostile", 100_000)
    yield tries.hear(kind, "DELETED", manifest)


@pytest.fixture(scope="module")
def tries() -> Iterator[Tried]:
    with asyncio.Runner() as runner:
        yield Tried(runner)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, table in TABLES.items() for name in some(table)]
)
def test_an_object_costs_little_and_harms_no_other(
    tries: Tried, caplog: pytest.LogCaptureFixture, kind: Kind, name: str
) -> None:
    tries.begin(caplog)
    before = tries.cluster.books()
    for manifest in TABLES[kind][name]():
        all(tried(kind, tries, manifest))
    tries.cluster.plan()
    assert tries.cluster.books() == before
    assert PLAIN in tries.cluster.filter(usual_pod("normal"))["NodeNames"]
    assert {PLAIN, HAMI} <= set(tries.cluster.filter(ASKS["ResourceSlice"])["NodeNames"])
    assert not tries.problems, "\n".join(tries.problems[:40])
    tries.cluster.alive()


def test_nodes_of_many_models_and_resources(runner: asyncio.Runner) -> None:
    """A node that changes its model and its resources 300 times leaves no memory behind."""
    cluster = Cluster(runner)
    budget = Budget(cluster)
    for n in range(examples(300, least=160)):
        labels = {"nvidia.com/gpu.product": f"NVIDIA-X{n}", "nvidia.com/gpu.memory": str(1000 + n)}
        cluster.hear("Node", "MODIFIED", node({f"nvidia.com/mig-{n}g.{n}gb": "1"}, labels=labels))
        cluster.filter(usual_pod("n"))
    cluster.hear("Node", "DELETED", node())
    assert budget.of_event("Node", "ADDED", usual_nodes()[0] | {"metadata": {"name": "new"}}) == ""
    assert budget.of_verbs(usual_pod("n")) == ""
    fleet = cluster.engine.state.fleet
    assert len(fleet.names.resources) < 150
    assert len(fleet.names.kinds) < 150
