"""Messages of many megabytes: legitimate ones are answered, and nobody waits for them."""

from __future__ import annotations

import asyncio
import json

from tests.contract.conftest import Start, manifest
from tests.extender.builders import make_node


def preempt_body(nodes: int, victims: int) -> bytes:
    """Full victims on so many nodes, as kube-scheduler sends them without ``nodeCacheCapable``."""
    filler = [{"name": f"e{n}", "value": "x" * 40} for n in range(20)]
    spec = {"containers": [{"name": "c", "env": filler}]}
    by_node = {
        f"n{n}": {
            "Pods": [
                {"metadata": {"name": f"v{i}", "uid": f"u{n}-{i}"}, "spec": spec} for i in range(victims)
            ],
            "NumPDBViolations": 0,
        }
        for n in range(nodes)
    }
    return json.dumps(
        {"Pod": manifest(), "NodeNameToVictims": by_node, "NodeNameToMetaVictims": None}
    ).encode()


async def test_full_nodes_are_answered(start: Start) -> None:
    stowage = await start(make_node("n0"), make_node("n1"))
    images = [{"names": ["x" * 50], "sizeBytes": 1} for _ in range(60)]
    nodes = [{"metadata": {"name": f"n{n}"}, "status": {"images": images}} for n in range(1000)]
    message = {"Pod": manifest(), "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}
    assert len(json.dumps(message)) > 4 << 20
    reply = (await stowage.post("filter", message)).json()
    assert reply["Nodes"]["items"] == nodes[:2]


async def test_others_are_answered_while_a_large_message_is_parsed(start: Start) -> None:
    stowage = await start(make_node("a"))
    body = preempt_body(2000, 20)
    assert len(body) > 30 << 20
    headers = {"content-type": "application/json"}
    large = asyncio.create_task(stowage.http.post("/scheduler/preempt", content=body, headers=headers))
    answered = 0
    while not large.done():
        await stowage.filter(manifest(), ["a"])
        answered += 1
    assert (await large).status_code in (200, 503)
    assert answered > 3
