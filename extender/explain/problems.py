"""The problems of nodes, pods and the cluster in one place, each with advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Literal, TypeAlias

from extender.cluster.factory import prior_of
from extender.cluster.state import VERSION, State
from extender.cluster.unoffered import closed_text, not_offered, rejections, unoffered, unoffered_counts
from extender.dialects import stowage
from extender.explain.words import ADVICE
from extender.inventory.node_state import MIG_CHANGE, mig_change_of
from extender.k8s.objects import Node
from extender.settings import DEFAULT_QUEUES, Queue, Settings
from extender.untrusted.limits import KEY, shorten
from packing.fleet.feasibility import could_host
from packing.model.reasons import Reason

ProblemKind: TypeAlias = Literal[
    "watch", "right", "settings", "policy", "task", "token", "history", "node", "pod", "object"
]
LEASE = "the Lease"
_SILENT = 360.0
"""Seconds without data from a watch after which it is a problem. Five minutes are normal."""
_RIGHT = "grant Stowage this permission: the roles are in deploy/, and docs/install.md lists their purpose"
_WATCH = "check the API server and the network; Stowage answers from the last known state, and retries"
_UNLISTED = "mend its API, so that kubectl get lists it; until then it counts as unknown"
_SETTINGS = "correct the setting (docs/settings.md), or the object that it names"
_POLICY = "pods are placed without this part; see the traceback in the log and report it"
_TASK = "it was restarted; see the traceback in the log and report it"
_TOKEN = "correct debug_token_file, or apply deploy/rbac-debug-auth.yaml for debug_token_review"
_HISTORY = "check the volume of history_path: its space, its permissions, and the files stowage-*.jsonl"
_NODE_CLOSED = "correct the named label, annotation or resource: until then the node accepts no pods"
_NODE = "correct the named data; it is ignored until then, and the node accepts pods"
_UNOFFERED = "check the device plugin and the driver of the node; until then its GPUs accept no pods"
_REJECTIONS = "see the messages of these pods, and restart the device plugin; new pods may fail there, too"
_LAYOUTS = "create or correct the MIG manager's ConfigMap, or the setting mig_manager"
_LAYOUT_CHANGE = f"see the log of the node's MIG manager, then remove the annotation {MIG_CHANGE} of the node"
_POD = "correct its request and recreate it; a pending pod is not placed, a running one counts as the larger"
_CONTRADICTION = (
    "the larger use counts until the pod ends; deploy/keep-assignments.yaml prevents edits of a pod's "
    "assignments"
)
_OBJECT = "correct the object: its unreadable part is ignored, or counts as the larger use"


@dataclass(frozen=True, slots=True)
class Problem:
    """``about``: the name of a node, the key of a pod, or another subject."""

    kind: ProblemKind
    about: str
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts that are not part of the state. ``watches``: why the last attempt to list or watch a resource
    failed; ``forbidden``: those of them, and ``LEASE``, for which Stowage has no right. ``silent``: seconds
    since the last data, by resource. ``lease`` and ``tokens``: why their last use failed. ``tasks``: recent
    failures of tasks and threads. ``history``: why some of it is missing. ``server_version``: version of the
    API server, "" if unknown."""

    watches: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, float] = field(default_factory=dict)
    lease: str = ""
    tokens: str = ""
    tasks: Mapping[str, str] = field(default_factory=dict)
    history: str = ""
    server_version: str = ""
    forbidden: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Problems:
    """The first problems, of the cluster before nodes and pods; ``counts`` counts all of them."""

    counts: Mapping[str, int]
    problems: Sequence[Problem]
    more: int


def problems_of(state: State, settings: Settings, around: Surroundings, most: int) -> Problems:
    """The first problems, at most ``most``."""
    found = chain(
        _of_cluster(state, settings, around),
        _of_nodes(state),
        _of_rejections(state),
        _of_pods_and_objects(state),
    )
    shown = list(islice(found, most))
    rest = Counter(problem.kind for problem in found)
    counts: Mapping[str, int] = dict((Counter(problem.kind for problem in shown) + rest).items())
    return Problems(counts, shown, rest.total())


def _of_cluster(state: State, settings: Settings, around: Surroundings) -> Iterator[Problem]:
    failed = {resource: (text, _WATCH) for resource, text in around.watches.items()}
    failed |= {kind.resource: (kind.why, f"{_UNLISTED}: {kind.effect}") for kind in state.unlisted.values()}
    for resource, (text, advice) in failed.items():
        yield _of_access(around, resource, text, advice)
    for resource, seconds in around.silent.items():
        if _SILENT < seconds < float("inf") and resource not in around.watches:
            yield Problem("watch", resource, f"nothing was received for {seconds:.0f} s", _WATCH)
    if around.lease:
        yield _of_access(around, LEASE, around.lease, _WATCH)
    if around.tokens:
        yield Problem("token", "/debug and /metrics", around.tokens, _TOKEN)
    if around.history:
        yield Problem("history", "history_path", shorten(around.history), _HISTORY)
    for part, count in sorted(state.failures.counts.items()):
        yield Problem("policy", part, f"failed {count} times since the start", _POLICY)
    for name, text in around.tasks.items():
        yield Problem("task", name, text, _TASK)
    for setting, text in _contradictions(state, settings, around.server_version):
        yield Problem("settings", setting, text, _SETTINGS)


def _of_access(around: Surroundings, about: str, text: str, advice: str) -> Problem:
    forbidden = about in around.forbidden
    return Problem("right" if forbidden else "watch", about, shorten(text), _RIGHT if forbidden else advice)


def _contradictions(state: State, settings: Settings, server_version: str) -> Iterator[tuple[str, str]]:
    """Settings that contradict the cluster, and how."""
    said, known = (VERSION.match(text or "") for text in (settings.kubernetes_version, server_version))
    if said and known and said.groups() != known.groups():
        yield "kubernetes_version", f"says {said[0]}, and the API server is {known[0]}"
    for place, entry in enumerate(settings.demand):
        mix = prior_of([entry])
        if mix and state.nodes and not could_host(state.fleet, mix.requests[0]):
            yield f"demand.{place}", "no node could host such a pod, even empty"
    classes = state.rights.queues.classes
    for name, queue in settings.queues.items() if classes.by_name else ():
        for class_name in sorted(queue.priority_classes - DEFAULT_QUEUES.get(name, Queue()).priority_classes):
            if class_name not in classes.by_name:
                yield f"queues.{name}", f"there is no PriorityClass {class_name}"
    if not settings.bind:
        specs = (spec for spec in state.fleet.specs if spec is not None)
        shared = sum(spec.sharing_resource == stowage.RESOURCE for spec in specs)
        if shared:
            yield "bind", f"is off, and only bind can assign the shared GPUs of {shared} nodes"


def _of_nodes(state: State) -> Iterator[Problem]:
    for name in sorted(state.overcommitted):
        yield Problem("node", name, Reason.OVERCOMMITTED.text, ADVICE[Reason.OVERCOMMITTED])
    for name, text in sorted(state.nodes.problems.items()):
        advice = _NODE if name in state.nodes.sources else _NODE_CLOSED
        yield Problem("node", shorten(name, KEY), shorten(text), advice)
    for name, text in sorted(state.numa.problems.items()):
        yield Problem("node", shorten(name, KEY), shorten(text), _NODE)
    for name, text in sorted(state.nodes.layouts.problems(state.nodes)):
        yield Problem("node", shorten(name, KEY), shorten(text), _LAYOUTS)
    for name, node in sorted(state.nodes.items()):
        if MIG_CHANGE in node.annotations and (text := _layout_problem(node)):
            yield Problem("node", shorten(name, KEY), text, _LAYOUT_CHANGE)
    for name in sorted(unoffered_counts(state).keys() - state.nodes.problems.keys()):
        if text := not_offered(state, name):
            yield Problem("node", shorten(name, KEY), text, _UNOFFERED)
        elif (found := unoffered(state, name)) and not closed_text(state, name):
            text = f"{found.note}; its pods hold {found.used:g}" if found.used else found.note
            yield Problem("node", shorten(name, KEY), text, _UNOFFERED)


def _of_rejections(state: State) -> Iterator[Problem]:
    for name in sorted(set(state.pods.not_admitted.values()) & state.fleet.rows.keys()):
        if text := rejections(state, name):
            yield Problem("node", shorten(name, KEY), text, _REJECTIONS)


def _layout_problem(node: Node) -> str:
    change = mig_change_of(node.annotations)
    if change is None:
        return f"the annotation {MIG_CHANGE} cannot be read, and is ignored"
    if change.step != "failed":
        return ""
    return shorten(
        f"the MIG manager has not applied layout {change.after.name}; no layout is changed for a day"
    )


def _of_pods_and_objects(state: State) -> Iterator[Problem]:
    for problems, advice in ((state.allocations.problems, _CONTRADICTION), (state.pods.problems, _POD)):
        for key, text in sorted(problems.items()):
            pod = key.partition(" ")[0]  # the rest is the node of an assumed pod
            yield Problem("pod", shorten(pod, KEY), shorten(text), advice)
    for name, text in sorted(state.object_problems.items()):
        yield Problem("object", shorten(name, KEY), shorten(text), _OBJECT)
