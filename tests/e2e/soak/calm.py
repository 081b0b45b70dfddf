"""What must hold once the faults are over and no new pods come."""

import time
from collections.abc import Callable

import httpx

from ..stowage import holders
from .ledger import WAY
from .load import Load
from .stack import Stack
from .watch import Watch

READY_S, SETTLE_S, BOOKS_S = 60.0, 60.0, 60.0


def check(stack: Stack, watch: Watch, load: Load) -> None:
    """Waits for calm, and adds what is wrong to the findings of ``watch``."""
    _expect(watch, lambda: _one_is_ready(stack), READY_S, "not ready: no replica, or both, after all faults")
    _expect(watch, lambda: not _stuck(watch), SETTLE_S, lambda: f"stuck: {_describe(stack, watch)}")
    _check_reasons(stack, watch)
    watch.check_claims()
    for one in stack.replicas:
        _expect(
            watch,
            lambda one=one: one.holders() == holders(stack.api),
            BOOKS_S,
            lambda one=one: f"phantom hold: {one.name} and the API differ: {_difference(stack, one)}",
        )
    watch.checks["calms"] += 1


def _one_is_ready(stack: Stack) -> bool:
    return [one.status("/readyz") for one in stack.replicas].count(200) == 1


def _stuck(watch: Watch) -> dict[str, list[str]]:
    """By name, the pending pods that have room somewhere, and where."""
    with watch.lock:
        pending = watch.pending()
        found = {one["metadata"]["name"]: watch.ledger.room(one) for one in pending}
        watch.checks["pending pods judged"] += len(pending)
    return {name: rooms for name, rooms in found.items() if rooms}


def _check_reasons(stack: Stack, watch: Watch) -> None:
    """Each pod that still waits fits nowhere, and Stowage says so, too."""
    leader = stack.replicas[stack.leader]
    for one in watch.pending():
        name = one["metadata"]["name"]
        try:
            told = leader.json(f"/debug/pods/default/{name}")
        except httpx.HTTPError as problem:
            watch.found(f"no reason: /debug/pods of {name}: {problem!r}")
            continue
        watch.checks["reasons of pending pods"] += 1
        if not told.get("now", told):
            watch.found(f"no reason: {name} waits, and Stowage says nothing")


def _describe(stack: Stack, watch: Watch) -> str:
    stuck = _stuck(watch)
    lines = []
    for name, rooms in list(stuck.items())[:5]:
        pod = next(one for one in watch.pending() if one["metadata"]["name"] == name)
        conditions = [one.get("message", "") for one in pod["status"].get("conditions", ())]
        way = pod["metadata"]["labels"][WAY]
        lines.append(f"{name} ({way}) fits {rooms[:3]} and waits: {conditions}")
    return f"{len(stuck)} pods: " + "; ".join(lines)


def _difference(stack: Stack, one: object) -> str:
    mine, api = one.holders(), holders(stack.api)  # type: ignore[attr-defined]
    text = [
        f"{node}: only Stowage {sorted(mine.get(node, set()) - api.get(node, set()))[:3]}, "
        f"only API {sorted(api.get(node, set()) - mine.get(node, set()))[:3]}"
        for node in sorted(mine.keys() | api.keys())
        if mine.get(node) != api.get(node)
    ]
    return f"{len(text)} nodes: {text[:4]}"


def _expect(
    watch: Watch, holds: Callable[[], bool], within_s: float, finding: str | Callable[[], str]
) -> None:
    until = time.monotonic() + within_s
    while True:
        try:
            if holds():
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > until:
            watch.found(finding if isinstance(finding, str) else finding())
            return
        time.sleep(0.3)
