"""Ways to make room for a pod or a gang that does not fit: a pod that ends, or pods that move."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from extender.cluster.gang_placement import waiting_members
from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError, effective_requests
from extender.explain.answers import Actor, EvictionOption, Evictions, EvictorMode, NeedKind, Refusal
from extender.explain.fixes import Change, Fix
from extender.explain.needs import cpus_said, memory_said
from extender.explain.what_if import allocations_of, fit_at_once, fitting_after
from extender.explain.words import Word
from extender.inventory.cloud_labels import INSTANCE_TYPE
from extender.inventory.devices import LAYOUT_LABEL
from extender.inventory.node_state import copy_of
from extender.k8s.affinity import PINNED_OWNERS
from extender.k8s.objects import Node, Pod
from extender.k8s.quantity import QuantityError, milli, whole
from extender.protocol.node_names import NodeNames
from extender.queues.rights import WhyNot
from extender.settings import Mode, Settings
from extender.trial.cluster_pods import reserves_only
from extender.trial.mig_search import gpus_asked, open_candidate, possible_changes, would_change
from extender.trial.room_by_moves import (
    asked_together,
    mode_for,
    room_by_moves,
    rule_of,
    starting_together,
    would_make_room,
)
from extender.untrusted.limits import GANG_READ, KEY, LISTED_NAMES, shorten
from extender.untrusted.visible import listed
from extender.verbs.evaluate import dra_resources, reason_on
from extender.verbs.eviction.node_pods import gpus_held
from extender.verbs.eviction.plan import EvictionPlan, gpu_hours, losses, plan_evictions, rules_for
from extender.verbs.eviction.promising import promising_nodes
from extender.verbs.gang_fit import Supposed, gang_may_fit, gang_would_fit, wants_dra
from packing.fleet.feasibility import copies_that_fit
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.plan.move_rule import MoveRule

_TRIED, _GANG_TRIED, _NODES, _LAYOUTS = 24, 256, 8, 256
"""Maximum number of pods and of nodes tried, and of nodes tried with another MIG layout."""
_WHO = {"on": Word.MOVES_BY_EVICTOR, "recommend": Word.LET_MOVE}
_EMPTIED = 2000
"""Maximum number of pods removed to test whether a gang would fit without them."""
_NAMED = 3
BEST = 3
"""Maximum number of nodes shown where evictions help."""


def room_by_others(state: State, pod: Pod, settings: Settings | None, now: float) -> Fix | None:
    """Who could move elsewhere so that the pod fits, or its whole gang, and who does it; None if no few moves
    are known to be enough. ``settings`` of the evictor, None if they are not known; ``now`` in Unix seconds.
    """
    permitted, pods = PermittedRows(state), starting_together(state, pod)
    mode = _mode(state, pods, settings) if settings else "off"

    def nodes_of(other: Pod) -> list[str]:
        rows = permitted.rows_that_accept(other)
        return [name for name, row in state.fleet.rows.items() if rows[row]]

    usual = rule_of(settings) if settings else MoveRule()
    for rule in ((usual, None) if mode != "off" else (None,)) if pods else ():
        room = room_by_moves(state, pods, nodes_of, now, most=usual.moves, rule=rule, questions=_TRIED)
        if room:
            return Fix((_WHO[mode] if rule else Word.MOVES)(moves=would_make_room(room)))
    return None


def layout_change_for(state: State, pod: Pod, settings: Settings | None, now: float) -> Fix | None:
    """Which node that nobody uses could get another MIG layout so that the pod fits, and who does it; None
    for none. ``settings`` of the evictor, None if they are not known; ``now`` in Unix seconds."""
    request = state.request_or_none(pod)
    if request is None or not gpus_asked(request):
        return None
    given = settings or Settings()
    found = (open_candidate(state, node, now) for node in state.nodes.values() if LAYOUT_LABEL in node.labels)
    idle = [node for node in islice(filter(None, found), _LAYOUTS) if node.is_idle]
    seconds = given.mig_layout_seconds
    changes = possible_changes(state, given, idle, [pod], lambda node: node.gpus * seconds)
    if (change := next(filter(None, changes), None)) is None:
        return None
    if given.mig_layouts == "on":
        return Fix(Word.WAIT_LAYOUT(change=would_change(change)))
    name, layout = shorten(change.name, KEY), shorten(change.layout.name, KEY)
    return Fix(Word.GIVE_LAYOUT(node=name, layout=layout, label=LAYOUT_LABEL))


def _mode(state: State, pods: Sequence[Pod], settings: Settings) -> Mode:
    """Whether the evictor moves others for pods that start together."""
    requests = asked_together(state, pods)
    serves = bool(requests) and sum(request.gpus for request in requests) >= settings.consolidation_gpus
    return mode_for(state, pods[0], settings) if serves else "off"


def ends(state: State, pod: Pod, request: Request, names: Sequence[str]) -> Iterator[Fix]:
    """Pods whose end frees enough room for a pod that starts by itself, on one of these nodes: one pod,
    preferably one that must end soon, else all that can end on a node; or the pod that this one replaces."""
    held = list(islice(_holders_on(state, pod, request, names), _TRIED))
    held.sort(key=lambda two: two[0].started + state.end_costs.limit(two[0])[0])
    able = [(other, taken) for other, taken in held if _can_end(pod, other)]
    replaced = [(other, taken) for other, taken in held if _replaces(pod, other)]

    def enough(pods: Sequence[tuple[Pod, Allocation]]) -> list[Pod]:
        found = (o for o, taken in pods if _fits_without(state, pod, request, o.node_name, taken))
        return list(islice(found, 1))

    if first := enough(able):
        yield _wait_for(first)
    elif old := enough(replaced):
        yield _rollout(old)
    else:
        for node in dict.fromkeys(other.node_name for other, _ in able):
            pods = [(other, taken) for other, taken in able if other.node_name == node]
            if len(pods) > 1 and _fits_without(state, pod, request, node, *(taken for _, taken in pods)):
                yield _wait_for([other for other, _ in pods])
                return


def gang_ends(state: State, pod: Pod, request: Request, names: Sequence[str], missing: int) -> Iterator[Fix]:
    """The pods of few nodes whose end frees enough room for a gang with ``missing`` members."""
    pods = dict[str, list[Pod]]()
    for other, _ in islice(_holders_on(state, pod, request, names), _GANG_TRIED):
        pods.setdefault(other.node_name, []).append(other)
    able = [node for node, holders in pods.items() if all(_can_end(pod, other) for other in holders)]
    gone: list[Pod] = []
    for node in sorted(able, key=lambda node: len(pods[node]))[:_NODES]:
        if fit_at_once(state, pod, request, 1, tuple(allocations_of(state, pods[node]))):
            gone += pods[node]
        if fit_at_once(state, pod, request, missing, tuple(allocations_of(state, gone))) == missing:
            yield _wait_for(gone)
            return
    old = [other for holders in pods.values() for other in holders if _replaces(pod, other)]
    if old and fit_at_once(state, pod, request, missing, tuple(allocations_of(state, old))) == missing:
        yield _rollout(old)


def _wait_for(pods: Sequence[Pod]) -> Fix:
    return _once_gone(Word.WAIT_END if len(pods) == 1 else Word.WAIT_ENDS, pods)


def _rollout(old: Sequence[Pod]) -> Fix:
    of_ray = old[0].owner is not None and old[0].owner.kind == "RayCluster"
    return _once_gone(Word.ROLLOUT_OF_RAY if of_ray else Word.ROLLOUT, old)


def _once_gone(word: Word, pods: Sequence[Pod]) -> Fix:
    nodes = list(dict.fromkeys(other.node_name for other in pods))
    named = listed([shorten(other.key, KEY) for other in pods], _NAMED)
    said = word(pods=named, node=" and ".join(shorten(node, KEY) for node in nodes))
    return Fix(said, change=Change(gone=tuple(pods), among=nodes))


def _can_end(pod: Pod, other: Pod) -> bool:
    """Whether another pod may end while this one is pending."""
    return not (_is_pinned(other) or reserves_only(other) or _replaces(pod, other))


def _is_pinned(pod: Pod) -> bool:
    return pod.owner is not None and pod.owner.kind in PINNED_OWNERS


def _replaces(pod: Pod, other: Pod) -> bool:
    """Whether a controller replaces the other pod by this one, so that it runs until this one does."""
    new, old = pod.owner, other.owner
    if new is None or old is None or pod.namespace != other.namespace or new == old or new.kind != old.kind:
        return False
    if new.kind == "RayCluster":  # of a RayService: named after it and five random characters
        names = [re.fullmatch("(.+)-[a-z0-9]{5}", owner.name) for owner in (new, old)]
        return bool(names[0] and names[1] and names[0][1] == names[1][1])
    return new.kind == "ReplicaSet" and new.name.rpartition("-")[0] == old.name.rpartition("-")[0]


def added_nodes(state: State, pod: Pod, request: Request, names: Sequence[str]) -> Iterator[Fix]:
    """As many more nodes like the first of these that, once its pods have gone, would take the pod, as its
    gang lacks."""
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    missing = missing_members(state, pod) if gang and gang.to_place > 1 else 1
    for name in names[:_NODES]:
        if (node := state.nodes.get(name)) is None:
            continue
        new, gone = copy_of(node, f"{name}-new"), tuple(_leaving(state, name))
        change: Change | None = Change(nodes={name: new}, gone=gone, among=(name,))
        count = 1
        if missing > 1:
            if change is None or not fitting_after(state, pod, change, with_gang=False):
                continue
            each = _copies(state, request, name, gone, missing)
            rest = missing - fit_at_once(state, pod, request, missing)
            if not each or rest <= 0:
                continue
            count, change = -(-rest // each), None
        machine = node.labels.get(INSTANCE_TYPE, "")
        what = Word.OF_TYPE(type=shorten(machine, KEY)) if machine else ""
        said = (Word.ADD_NODE if count == 1 else Word.ADD_NODES)(count=count, node=name, type=what)
        yield Fix(said, change=change)
        return


def _leaving(state: State, node: str) -> Iterator[Pod]:
    """The pods of a node that another node like it would not have."""
    return (other for other in state.pods.on_node(node) if not _is_pinned(other))


def _copies(state: State, request: Request, name: str, gone: Sequence[Pod], most: int) -> int:
    """Number of such pods that a node would take without the pods that are ``gone``."""
    with state.fleet.without(tuple(allocations_of(state, gone))):
        copies = copies_that_fit(state.fleet, request)
    return 1 if copies is None else min(int(copies[state.fleet.rows[name]]), most)


def missing_members(state: State, pod: Pod) -> int:
    """Number of members of the pod's gang that must still start; 0 if they have different requests, or some
    are gated, so that no room is enough."""
    gang = state.gangs.gang_of(pod)
    if gang is None:
        return 1
    others = state.gangs.still_to_start(gang, gang.to_place, state.pods.is_bound, but=pod.key)
    kinds = {state.request_or_none(member) for member in (pod, *others.free[:GANG_READ])}
    too_few = others.gated and 1 + len(others.free) < others.missing
    return max(others.missing, 1) if len(kinds) == 1 and not too_few else 0


def _fits_without(state: State, pod: Pod, request: Request, node: str, *left: Allocation) -> bool:
    """Whether the pod would fit on the node without the allocations ``left``."""
    return reason_on(state, pod, request, node, without=left) is Reason.FITS


def pods_without_gpus(state: State, pod: Pod, request: Request, refusal: Refusal) -> Iterator[Fix]:
    """Pods without GPUs that hold the missing CPU or memory of the nearest node: those that can move, else
    those of DaemonSets."""
    kinds = (need.kind for need in refusal.lacks)
    lacking = next((kind for kind in kinds if kind in (NeedKind.CPU, NeedKind.MEMORY)), None)
    for word, held in (
        (Word.MOVE_WITHOUT_GPUS, held_without_gpus(state, refusal.nearest)),
        (Word.DAEMONSETS_HOLD, held_without_gpus(state, refusal.nearest, pinned=True)),
    ):
        left = (taken for _, taken in held)
        if not lacking or not held or not _fits_without(state, pod, request, refusal.nearest, *left):
            continue
        is_cpu = lacking is NeedKind.CPU
        sizes = {other.key: taken.cpu_milli if is_cpu else taken.memory_mib for other, taken in held}
        total = sum(sizes.values())
        largest = sorted(sizes, key=lambda key: (-sizes[key], key))
        named = listed([shorten(key, KEY) for key in largest], _NAMED)
        amount = cpus_said(total) if is_cpu else memory_said(total)
        change = Change(gone=tuple(other for other, _ in held), among=(refusal.nearest,))
        yield Fix(word(node=refusal.nearest, amount=amount, pods=named), change=change)
        return


def held_without_gpus(state: State, node: str, *, pinned: bool = False) -> list[tuple[Pod, Allocation]]:
    """Pods without GPUs on a node that can move, or that are ``pinned`` to it (DaemonSets, static pods), and
    the resources that they hold."""
    return [
        (pod, taken)
        for pod in state.pods.on_node(node)
        if (taken := state.allocations.allocation_of(pod.key))
        and not taken.has_gpus
        and _is_pinned(pod) == pinned
    ]


def gang_fits_when_empty(state: State, pod: Pod, request: Request) -> bool:
    """Whether the pod's gang would fit if no other pod had a GPU; True for a pod that starts by itself, and
    where that is not known: for devices of claims, and where too many pods have GPUs to try."""
    gang = state.gangs.gang_of(pod) if state.gang_check else None
    if gang is None or gang.to_place < 2:
        return True
    members = waiting_members([pod, *state.gangs.members(gang.key)], GANG_READ, state.request_of)
    if any(wants_dra(state, member) for member in members):
        return True
    bound = (other for other in state.pods.values() if other.node_name)
    every = (held for other in bound for held in state.pods.allocations_of(other))
    held = (allocation for allocation in every if allocation.has_gpus)
    left = tuple(islice(held, _EMPTIED + 1))
    return len(left) > _EMPTIED or gang_would_fit(state, pod, request, Supposed(state.nodes, left))


def _holders_on(
    state: State, pod: Pod, request: Request, names: Sequence[str]
) -> Iterator[tuple[Pod, Allocation]]:
    """Pods with GPUs on the nodes that lack least, the smallest first on each."""
    nodes = (node.name for node in promising_nodes(state, pod, request, names, {}) if not node.by_claims)
    for others in map(state.pods.on_node, nodes):
        staying = (other for other in others if other.uid != pod.uid and not other.deleting)
        held = [(other, taken) for other in staying if (taken := state.allocations.allocation_of(other.key))]
        with_gpus = [(other, taken) for other, taken in held if taken.has_gpus]
        yield from sorted(with_gpus, key=lambda two: (gpus_held(state.fleet, two[1:]), two[0].key))


def evictions_for(
    state: State, pod: Pod, nodes: Sequence[str], now: float, evictor: EvictorMode = "unknown"
) -> Evictions:
    """Evictions for a pod that fits on none of these nodes. ``now`` in Unix seconds."""
    if (request := state.request_or_none(pod)) is None:
        return Evictions()
    lacking = [node.name for node in promising_nodes(state, pod, request, nodes, {})]
    actor: Actor = "kube-scheduler"
    useless = 0  # plans that help the pod, and not its gang
    plans = plan_evictions(state, pod, lacking, now)
    plans = [plan for plan in plans if not plan.pdb_violations] or plans
    plans = [plan for plan in plans if _leaves_the_rest(state, pod, plan, now)]
    acting = (plan for plan in plans if not plan.to_evict or _asks_preempt(state, pod, plan.node))
    shown = list(islice(acting, BEST))
    if not shown:
        actor = "evictor"
        plans = plan_evictions(state, pod, lacking, now, to_equals=True, whole_gangs=True)
        plans = [p for p in plans if not p.pdb_violations and _leaves_the_rest(state, pod, p, now)]
        shown = plans[:BEST]
    if plans and not gang_may_fit(state, pod, request):
        useless, plans, shown = len(plans), [], []
    rules = rules_for(state, pod, now, to_equals=actor == "evictor")
    on_nodes = [other for node in lacking for other in state.pods.on_node(node)]
    others = [other for other in on_nodes if other.uid != pod.uid and not other.deleting]
    protected = Counter(filter(None, rules.why_not(others)))
    stuck = [other for other in on_nodes if other.deleting and not other.is_about_to_go(now)]
    protected.update(f"{WhyNot.STUCK}: {shorten(other.key, KEY)}" for other in stuck[:LISTED_NAMES])
    not_enough = len(lacking) - len(plans) - useless
    elsewhere = {
        Reason.GANG_DOES_NOT_FIT.text: useless,
        str(Word.DEARER()): len(plans) - len(shown),
        str(Word.NOT_ENOUGH()): not_enough,
    }
    return Evictions(
        tuple(_option(state, plan, actor, now) for plan in shown),
        {why: count for why, count in elsewhere.items() if count > 0},
        dict(protected.most_common()),
        evictor,
    )


def _leaves_the_rest(state: State, pod: Pod, plan: EvictionPlan, now: float) -> bool:
    """Whether the node then has enough of what Stowage does not place by, too."""
    gone = {victim.uid for victim in plan.victims}
    gone |= {other.uid for other in state.pods.on_node(plan.node) if other.is_about_to_go(now)}
    return not any(lacking_on(state, state.nodes[plan.node], asked_by(pod), gone))


def _option(state: State, plan: EvictionPlan, acts: Actor, now: float) -> EvictionOption:
    here = ([pod for pod in plan.victims if pod.deleting is leaving] for leaving in (False, True))
    victims, leaving = (tuple(shorten(pod.key, KEY) for pod in pods[:LISTED_NAMES]) for pods in here)
    others = plan.other_nodes[:LISTED_NAMES]
    elsewhere = tuple(f"{shorten(pod.key, KEY)} on {shorten(pod.node_name, KEY)}" for pod in others)
    return EvictionOption(
        node=plan.node,
        acts=acts,
        pods=len(plan.to_evict),
        victims=victims,
        other_nodes=elsewhere,
        leaving=leaving,
        loses=losses(state, plan, now),
        gpu_hours=gpu_hours(state, plan, now),
        pdb_violations=plan.pdb_violations,
        cost=plan.cost,
    )


def _asks_preempt(state: State, pod: Pod, node: str) -> bool:
    """Whether kube-scheduler calls ``preempt`` for a node where evictions help: from 1.38 on always, before
    that only where it counts too little itself. It never does for gangs of its own, and it evicts nobody for
    devices of claims."""
    if (
        pod.pod_group
        or pod.spec.claims
        or any(dra_resources(state, pod, state.request_of(pod), NodeNames.of([node])))
    ):
        return False
    return state.eviction_helps_extenders or _counts_too_little(state, pod, state.nodes[node])


def _counts_too_little(state: State, pod: Pod, node: Node) -> bool:
    """Whether kube-scheduler's own filter (``NodeResourcesFit``) refuses the node. It adds up the requests of
    all pods, also for resources whose devices Stowage places. A resource that the node does not advertise
    is one that the scheduler's configuration tells it to ignore."""
    taken, wanted = Counter[str](pods=0), {**_requests(pod), "pods": 1}
    for other in state.pods.on_node(node.name):
        if other.uid != pod.uid:
            taken.update(_requests(other))
            taken["pods"] += 1
    return any(total - taken[name] < wanted[name] for name, total in _allocatable(node, wanted))


def _requests(pod: Pod) -> dict[str, int]:
    try:
        return effective_requests(pod.held)
    except RequestError:
        return {}


def _allocatable(node: Node, names: dict[str, int]) -> Iterator[tuple[str, int]]:
    for name in names:
        try:
            if name in node.allocatable:
                yield name, (milli if name == "cpu" else whole)(node.allocatable[name])
        except QuantityError:
            continue
