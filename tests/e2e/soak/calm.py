"""What must hold once the faults are over and no new pods come."""

import time
from collections.abc import Callable, Container
from functools import partial

import httpx

from ..controlplane.api import Api
from ..stowage import Stowage, holders
from . import fleet
from .ledger import WAY, holds
from .pieces import Pieces
from .stack import Stack
from .watch import Watch

READY_S, SETTLE_S, BOOKS_S, REASON_S = 60.0, 60.0, 60.0, 15.0


def check(stack: Stack, watch: Watch, pieces: Pieces) -> None:
    """Waits for calm, and adds what is wrong to the findings of ``watch``."""
    _expect(watch, lambda: _one_is_ready(stack), READY_S, "not ready: no replica, or both, after all faults")
    _expect(watch, lambda: not _stuck(watch), SETTLE_S, lambda: f"stuck: {_describe(stack, watch)}")
    _expect(
        watch,
        lambda: not pieces.without_a_pod(),
        SETTLE_S,
        lambda: f"lost: no pod of {pieces.without_a_pod()}",
    )
    _check_reasons(stack, watch)
    watch.check_claims()
    for one in stack.replicas:
        check_books(stack.api, watch, one)
        _check_devices(watch, one)
    watch.checks["calms"] += 1


def check_books(api: Api, watch: Watch, one: Stowage, within_s: float = BOOKS_S) -> None:
    """Stowage has the nodes of the API, with the same pods on each, and shares on the GPUs that pods name."""

    def agree() -> bool:
        return one.holders() == holders(api) and gpus(one, named := named_gpus(api)) == named

    _expect(watch, agree, within_s, lambda: f"phantom hold: {_difference(api, one)}")
    watch.checks["books compared"] += 1


def named_gpus(api: Api) -> dict[str, list[int]]:
    """By pod, the index of the GPU of which it has a share, from its annotations."""
    found = {}
    for pod in api.list("Pod")["items"]:
        if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Running":
            for device in filter(None, holds(pod)):
                found[f"default/{pod['metadata']['name']}"] = [int(device.rpartition("-")[2])]
    return found


def gpus(one: Stowage, pods: Container[str]) -> dict[str, list[int]]:
    """The GPUs that these pods have, according to Stowage."""
    nodes = one.json("/debug/nodes")["nodes"]
    held = [holder for node in nodes for holder in node["holders"]]
    return {holder["pod"]: holder["gpus"] for holder in held if holder["pod"] in pods}


def _check_devices(watch: Watch, one: Stowage) -> None:
    wanted = dict.fromkeys(fleet.names("claims"), 8)
    _expect(
        watch,
        lambda: devices(one) == wanted,
        BOOKS_S,
        lambda: f"devices for claims are not known: {devices(one)} of {wanted}",
    )


def devices(one: Stowage) -> dict[str, int]:
    """How many devices for claims Stowage knows, by node."""
    nodes = one.json("/debug/nodes")["nodes"]
    return {node["name"]: len(node["devices"]) for node in nodes if node.get("devices")}


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
    for pod in watch.pending():
        name = pod["metadata"]["name"]
        _expect(
            watch,
            partial(_fits_nowhere, stack, name),
            REASON_S,
            f"no reason: {name} waits, and Stowage does not say that it fits nowhere",
        )
        watch.checks["reasons of pending pods"] += 1


def _fits_nowhere(stack: Stack, name: str) -> bool:
    """Whether Stowage says why. Also if it is gone or bound by now."""
    try:
        told = stack.replicas[stack.leader].json(f"/debug/pods/default/{name}")
    except httpx.HTTPStatusError as problem:
        return problem.response.status_code == httpx.codes.NOT_FOUND
    now = told["now"]
    why = now and (now["error"] or now["refusals"] or now["passed_over"] or now["gang"])
    return bool(told["node"] or (why and not now["fits"]) or (now and now["gang"]))


def _describe(stack: Stack, watch: Watch) -> str:
    stuck = _stuck(watch)
    lines = []
    for name, rooms in list(stuck.items())[:5]:
        pod = next(one for one in watch.pending() if one["metadata"]["name"] == name)
        conditions = [one.get("message", "") for one in pod["status"].get("conditions", ())]
        way = pod["metadata"]["labels"][WAY]
        lines.append(f"{name} ({way}) fits {rooms[:3]} and waits: {conditions}")
    return f"{len(stuck)} pods: " + "; ".join(lines)


def _difference(api: Api, one: Stowage) -> str:
    mine, true, named = one.holders(), holders(api), named_gpus(api)
    text = [
        f"{node}: only Stowage {sorted(mine.get(node, set()) - true.get(node, set()))[:3]}, "
        f"only API {sorted(true.get(node, set()) - mine.get(node, set()))[:3]}"
        for node in sorted(mine.keys() | true.keys())
        if mine.get(node) != true.get(node)
    ]
    told = gpus(one, named)
    text += [
        f"{pod} is on GPU {named[pod]}, not {told.get(pod)}" for pod in named if told.get(pod) != named[pod]
    ]
    return f"{len(text)} differences of {one.process.name}: {text[:4]}"


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
