"""One Stowage of several: what it says of nodes and pods that belong to the others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection

import httpx
import pytest

from extender.explain.words import ADVICE
from extender.k8s.objects import Node
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.errors import Unavailable
from extender.source.snapshot import Snapshot, SnapshotSource
from packing.model.reasons import Reason
from tests.contract.conftest import Stowage, manifest
from tests.extender.builders import make_node

NOT_OURS = Reason.NOT_IN_SHARD.text


class Cluster(SnapshotSource):
    """A cluster that can be asked for some of its nodes."""

    selected: tuple[str, Collection[str]] | None = None
    coming: frozenset[str] = frozenset()

    def joining(self) -> frozenset[str]:
        return self.coming

    def select_nodes(self, selector: str, schedulers: Collection[str]) -> None:
        self.selected = selector, schedulers


@pytest.fixture
async def shard() -> AsyncIterator[Stowage]:
    nodes: dict[str, Node] = {"a": make_node("a")}
    source = Cluster(Snapshot(nodes), "test")
    settings = Settings(node_selector="pool=a", shard_schedulers=["stowage-a"], bind=True)
    service = Service(settings, source, "1.2.3")
    assert source.selected == ("pool=a", ["stowage-a"])
    await service.start()
    transport = httpx.ASGITransport(create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://stowage") as client:
        yield Stowage(service, client)


async def test_nodes_of_other_shards_are_refused_with_that_reason(shard: Stowage) -> None:
    assert json.loads(await shard.filter(manifest(), ["theirs", "a"]))["NodeNames"] == ["a"]
    reply = json.loads(await shard.filter(manifest(), ["theirs"]))
    assert reply["FailedAndUnresolvableNodes"] == {"theirs": NOT_OURS}
    reply = json.loads(await shard.filter(manifest(gpus=16), ["theirs", "a"]))
    assert reply["FailedAndUnresolvableNodes"] == {"theirs": NOT_OURS, "a": Reason.TOO_FEW_GPUS.text}


async def test_while_a_node_joins_an_attempt_fails_and_is_repeated(shard: Stowage) -> None:
    """Nothing would wake an unschedulable pod when the node is there."""
    shard.service.source.coming = frozenset({"new"})
    reply = json.loads(await shard.filter(manifest(), ["new"]))
    assert "joins the shard" in reply["Error"]
    assert json.loads(await shard.filter(manifest(), ["new", "a"]))["NodeNames"] == ["a"]
    reply = json.loads(await shard.filter(manifest(), ["theirs"]))
    assert reply["Error"] == ""


async def test_nothing_is_bound_to_a_node_of_another_shard(shard: Stowage) -> None:
    await shard.filter(manifest(), ["theirs"])  # from here on bind knows the pod
    assert json.loads(await shard.bind(manifest(), "theirs"))["Error"] == NOT_OURS


async def test_no_pod_of_another_shard_is_preempted(shard: Stowage) -> None:
    victims = {"theirs": {"Pods": [{"UID": "somebody"}], "NumPDBViolations": 0}}
    reply = json.loads(await shard.preempt(manifest(), victims))
    assert not reply["NodeNameToMetaVictims"]


async def test_what_is_not_known_may_belong_to_another_shard(shard: Stowage) -> None:
    for path, what in (("nodes/theirs", "node theirs"), ("pods/ml/p", "pod ml/p")):
        answer = await shard.http.get(f"/debug/{path}")
        assert answer.status_code == 404
        assert answer.json()["detail"] == f"{what} is not known in this shard (node_selector: pool=a)"


async def test_the_decision_of_filter_has_the_reason_and_the_advice(shard: Stowage) -> None:
    await shard.filter(manifest(), ["theirs"])
    (decision, *_) = (await shard.http.get("/debug/decisions")).json()["decisions"]
    assert NOT_OURS in json.dumps(decision)
    assert "node_selector" in ADVICE[Reason.NOT_IN_SHARD]


def test_a_file_is_no_shard() -> None:
    with pytest.raises(Unavailable, match="node_selector"):
        Service(Settings(node_selector="pool=a"), SnapshotSource(Snapshot(), "a file"), "1.2.3")
