"""The effect of adding copies of existing nodes, and of removing nodes.

Pods of a removed node that a controller recreates become pending like all others. Pods of DaemonSets, static
pods and pods without a controller are not recreated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from extender.inventory.gpu_labels import INSTANCE_TYPE, PRODUCT
from extender.inventory.node_state import copy_of
from extender.k8s.objects import Deleted, Event, Node, Pod, Upserted
from extender.plan.prices import NodeCosts
from extender.plan.report import UNKNOWN, Gain, Progress, Report, Table, figure_gains
from extender.plan.source import ClusterSource
from extender.replay.steps import Outcome, Step, carry_out, largest_that_holds
from extender.source.errors import BadInput
from extender.trial.cluster_pods import Stays, as_new
from extender.trial.trial import Trial
from extender.untrusted.limits import quoted
from extender.untrusted.visible import many
from packing.fleet.stranded import Fragmentation
from packing.model.gpu_catalog import models

_ADDED = re.compile(r"(\d{1,4})x([^:]{1,253})(?::(.{1,200}))?", re.ASCII)
_ITEM = re.compile(r"(gpus|cpu|memory)=([0-9]{1,9}(?:Gi|Ti|Mi)?)", re.ASCII)
_MOST_ADDED = 2000
_EXPECTED = "expected COUNTxTYPE, such as 4xH100, 2xNODE, or 2xB200:gpus=8,cpu=192,memory=2Ti"


@dataclass(slots=True)
class NodesChange:
    """``starts``: pending pods that fit after the change, with their node; ``started``: those that fit
    without it; ``waits``: those that do not fit after it, and why. ``moved``: new nodes of pods of removed
    nodes; ``homeless``: such pods that fit nowhere, and why. ``before`` and ``after``: free capacity after
    all pods that fit have started."""

    before: Fragmentation
    after: Fragmentation
    started: dict[str, str]
    starts: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    homeless: dict[str, str] = field(default_factory=dict)

    def steps(self) -> list[Step]:
        """Steps on the changed cluster: place each pod on its node, in queue order."""
        return [Step("place", pod, node) for pod, node in (self.moved | self.starts).items()]


def plan_change(today: Trial, then: Trial, lost: Collection[str]) -> NodesChange:
    """The change between two trials. ``lost``: pods of removed nodes."""
    started, found = today.place_waiting(), then.place_waiting()
    change = NodesChange(today.figures(), then.figures(), started)
    for item in then.waiting:
        if item.key in found:
            (change.moved if item.key in lost else change.starts)[item.key] = found[item.key]
        else:
            (change.homeless if item.key in lost else change.waits)[item.key] = then.why_not(item)
    change.waits |= then.unplanned
    return change


def _losing(source: ClusterSource, removed: Sequence[str]) -> tuple[list[Event], set[str], dict[str, str]]:
    """The events that remove these nodes, their pods that are recreated, and those that are not, with the
    reason. Raises ``BadInput`` for an unknown node."""
    state = source.state()
    if unknown := [name for name in removed if name not in state.nodes]:
        raise BadInput(f"there is no node {unknown[0]}")
    events, lost, ends = list[Event](), set[str](), dict[str, str]()
    for name in removed:
        for pod in state.pods.on_node(name):
            events.append(Deleted("Pod", pod.key))
            if why := _why_it_ends(pod, bare_pods=source.bare_pods):
                ends[pod.key] = why
            else:
                lost.add(pod.key)
                events.append(Upserted(as_new(pod)))
        events.append(Deleted("Node", name))
    return events, lost, ends


def _smaller(change: NodesChange, outcome: Outcome) -> NodesChange | None:
    """The change without the pods that were not placed; no other placement depends on them."""
    for pod, why in outcome.unplaced.items():
        starts = change.starts.pop(pod, None)
        change.moved.pop(pod, None)
        (change.waits if starts else change.homeless)[pod] = why
    change.after = outcome.figures
    return change if outcome.unplaced else None


def _why_it_ends(pod: Pod, *, bare_pods: bool) -> str:
    if pod.deleting:
        return Stays.TERMINATING
    if pod.scheduling_constraints.pinned_to_node:
        return Stays.PINNED
    return Stays.NO_CONTROLLER if pod.owner is None and not bare_pods else ""


def change_report(
    source: ClusterSource,
    added: Sequence[Node],
    removed: Sequence[str],
    costs: NodeCosts,
    progress: Progress,
) -> Report:
    """The effect of these nodes, including pending pods. ``costs``: also of the added nodes. Raises
    ``BadInput``."""
    progress("placing the pods", 0.0)
    events, lost, ends = _losing(source, removed)
    then = source.trial([*map(Upserted, added), *events])
    start, change = then.savepoint(), plan_change(source.trial(), then, lost)
    progress("carrying out the plan", 0.5)
    change, outcome = largest_that_holds(change, lambda c: carry_out(then, c.steps(), start=start), _smaller)
    progress("carrying out the plan", 1.0)
    placed, found = (sum(pod in outcome.placed for pod in pods) for pods in (change.starts, change.moved))
    gains = [Gain("pending pods that fit", len(change.started), len(change.starts), placed)]
    if moved := len(change.moved):
        gains.append(Gain("pods of removed nodes that run", moved, moved, found))
    sentences = _sentences(change)
    if costs.per_month:
        before, after = costs.total - costs.of(node.name for node in added), costs.total - costs.of(removed)
        amounts = f"{before:,.0f} {costs.currency} today, {after:,.0f} after the change"
        sentences.append(f"Cost per month: {amounts} ({after - before:+,.0f}).")
    waiting = [
        (pod, change.started.get(pod, "-"), node, outcome.placed.get(pod, "no place"), "")
        for pod, node in change.starts.items()
    ]
    waiting += [(pod, change.started.get(pod, "-"), "-", "-", why) for pod, why in change.waits.items()]
    goes = [(pod, node, outcome.placed.get(pod, "no place"), "") for pod, node in change.moved.items()]
    goes += [(pod, "-", "-", why) for pod, why in change.homeless.items()]
    return Report(
        _title(source.name, added, removed),
        sentences,
        [
            Table(
                "waiting", "Pending pods", ("pod", "fits today on", "then on", "replayed", "why not"), waiting
            ),
            Table("moved", "Pods of the removed nodes", ("pod", "goes to", "replayed", "why not"), goes),
            Table("ends", "Pods that are not recreated", ("pod", "why"), [*ends.items()]),
        ],
        [*gains, *figure_gains(change.before, change.after, outcome.figures)],
        outcome.problems,
        [
            *filter(None, [costs.note()]),
            "All figures assume that the pending pods that fit have started. " + UNKNOWN,
        ],
        compared_with="unchanged",
    )


def _title(name: str, added: Sequence[Node], removed: Sequence[str]) -> str:
    kinds = Counter(node.name.rpartition("-")[0].removeprefix("added-") for node in added)
    parts = [f"with {many(count, 'more node')} like {kind}" for kind, count in kinds.items()]
    parts += [f"without {', '.join(removed)}"] if removed else []
    return f"{name}: {' and '.join(parts)}"


def _sentences(change: NodesChange) -> list[str]:
    newly = len(change.starts.keys() - change.started.keys())
    no_longer = len(change.started.keys() - change.starts.keys())
    only_then = f", {newly} of them only with the change" if newly else ""
    fit = many(len(change.starts), "pending pod")
    verb = "fits" if len(change.starts) == 1 else "fit"
    said = [f"{fit} {verb} ({len(change.started)} without the change){only_then}."]
    if no_longer:
        lost = many(no_longer, "pending pod")
        said.append(f"{lost} that {'fits' if no_longer == 1 else 'fit'} today would no longer fit.")
    if total := len(change.moved) + len(change.homeless):
        said.append(f"{len(change.moved)} of {many(total, 'pod')} of the removed nodes can run elsewhere.")
    return said


def added_nodes(text: str, nodes: Mapping[str, Node], taken: Iterable[str] = ()) -> list[Node]:
    """The nodes of a text such as ``4xH100``: copies of the node with this name; or of the most frequent kind
    of node whose GPU product or instance type contains it; or nodes that the text describes, with this GPU of
    the catalog. Raises ``BadInput``."""
    match = _ADDED.fullmatch(text)
    count = int(match[1]) if match else 0
    if match is None or not 0 < count <= _MOST_ADDED:
        raise BadInput(f"--add {quoted(text)}: {_EXPECTED}; at most {_MOST_ADDED} nodes")
    name, details = match[2], match[3] or ""
    like = nodes.get(name) or (None if details else _most_frequent(name, nodes))
    if like is None:
        like = _from_catalog(text, name, details)
    names = (f"added-{like.name}-{number}" for number in range(1, 1 << 20))
    known = {*nodes, *taken}
    fresh = (new_name for new_name in names if new_name not in known)
    return [copy_of(like, next(fresh)) for _ in range(count)]


def _most_frequent(name: str, nodes: Mapping[str, Node]) -> Node | None:
    """A node of the most frequent kind, by allocatable resources."""
    wanted = name.lower().replace(" ", "-")
    found = [
        node
        for node in nodes.values()
        if wanted in f"{node.labels.get(PRODUCT, '')} {node.labels.get(INSTANCE_TYPE, '')}".lower()
        and not node.unschedulable
    ]
    kinds = Counter(map(_offer, found))
    if not kinds:
        return None
    best = max(kinds, key=lambda kind: (kinds[kind], repr(kind)))
    return min((node for node in found if _offer(node) == best), key=lambda node: node.name)


def _offer(node: Node) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, text) for name, text in node.allocatable.items() if text != "0"))


def _from_catalog(text: str, name: str, details: str) -> Node:
    """A node unlike the existing ones: a GPU model of the catalog, with GPUs, CPU and memory as described."""
    model = next((gpu_model for gpu_model in models() if name.lower() in gpu_model.name.lower()), None)
    items = [_ITEM.fullmatch(item) for item in details.split(",")] if details else []
    given = {item[1]: item[2] for item in items if item}
    if model is None:
        known = ", ".join(gpu_model.name for gpu_model in models())
        raise BadInput(f"--add {quoted(text)}: no node or GPU is named {quoted(name)}; known GPUs: {known}")
    if len(given) != 3 or None in items or not given["gpus"].isdecimal():
        needs = f"there is no node with {model.name} here: describe one, as {name}:gpus=8,cpu=192,memory=2Ti"
        raise BadInput(f"--add {quoted(text)}: {needs}")
    product = model.product.pattern.strip("^$()").split("|")[0]
    labels = {PRODUCT: product, "nvidia.com/gpu.memory": str(model.memory_mib)}
    labels |= {"nvidia.com/gpu.count": given["gpus"], "kubernetes.io/arch": "amd64"}
    amounts = {"cpu": given["cpu"], "memory": given["memory"], "nvidia.com/gpu": given["gpus"], "pods": "110"}
    return Node(name.lower().replace(" ", "-"), labels=labels, allocatable=amounts)
