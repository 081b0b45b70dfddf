"""Ways to make room for a pod or a gang that does not fit: a pod that ends, or pods that move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from extender.cluster.gang_placement import WaitingMembers, waiting_members
from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError, effective_requests
from extender.explain.answers import Actor, EvictionOption, Evictions, EvictorMode, NeedKind, Refusal
from extender.explain.fixes import Fix
from extender.explain.words import Word
from extender.inventory.devices import LAYOUT_LABEL
from extender.k8s.objects import Node, Pod
from extender.k8s.quantity import QuantityError, milli, whole
from extender.protocol.node_names import NodeNames
from extender.queues.rights import WhyNot
from extender.settings import Mode, Settings
from extender.trial.mig_search import gpus_asked, open_candidate, possible_changes, would_change
from extender.trial.room_by_moves import (
    asked_together,
    mode_for,
    room_by_moves,
    rule_of,
    starting_together,
    would_make_room,
)
from extender.untrusted.limits import GANG_PLACED, GANG_READ, KEY, LISTED_NAMES, shorten
from extender.untrusted.visible import listed
from extender.verbs.evaluate import dra_resources, reason_on
from extender.verbs.eviction.node_pods import gpus_held
from extender.verbs.eviction.plan import EvictionPlan, gpu_hours, losses, plan_evictions, rules_for
from extender.verbs.eviction.promising import promising_nodes
from extender.verbs.gang_fit import Supposed, fit_together, gang_may_fit, gang_would_fit, wants_dra
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.model.request import Request
from packing.plan.move_rule import MoveRule

_TRIED, _LAYOUTS = 24, 256
"""Maximum number of pods tried on other nodes, and of nodes tried with another MIG layout."""
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


def fit_at_once(state: State, pod: Pod, request: Request, count: int) -> int:
    """Number of ``count`` such pods that fit now by GPUs, CPU and memory, 0 if unknown."""
    waiting = WaitingMembers(pod, request)
    least, most = 0, 0 if wants_dra(state, waiting) else min(count, GANG_PLACED)
    with state.fleet_view_for(pod) as fleet:
        while least < most:
            half = (least + most + 1) // 2
            fits = fit_together(state, fleet, [replace(waiting, count=half)])
            least, most = (half, most) if fits else (least, half - 1)
    return least


def _mode(state: State, pods: Sequence[Pod], settings: Settings) -> Mode:
    """Whether the evictor moves others for pods that start together."""
    requests = asked_together(state, pods)
    serves = bool(requests) and sum(request.gpus for request in requests) >= settings.consolidation_gpus
    return mode_for(state, pods[0], settings) if serves else "off"


def whose_end(state: State, pod: Pod, request: Request, names: Sequence[str]) -> Pod | None:
    """The first pod found on these nodes whose end frees enough room for the pod; preferably one that must
    end soon."""
    tried = [*islice(_holders_on(state, pod, request, names), _TRIED)]
    tried.sort(key=lambda two: two[0].started + state.end_costs.limit(two[0])[0])
    ends = (other for other, held in tried if _fits_without(state, pod, request, other.node_name, held))
    return next(ends, None)


def _fits_without(state: State, pod: Pod, request: Request, node: str, *left: Allocation) -> bool:
    """Whether the pod, and its gang as a whole, fits on the node without the allocations ``left``."""
    if reason_on(state, pod, request, node, without=left) is not Reason.FITS:
        return False
    return not state.gang_check or gang_would_fit(state, pod, request, Supposed(state.nodes, left))


def others_without_gpus(state: State, pod: Pod, request: Request, refusal: Refusal) -> Fix | None:
    """Pods without GPUs that hold the missing CPU or memory of the nearest node; None if moving them would
    not suffice. Pods of DaemonSets and static pods are not moved."""
    kinds = (need.kind for need in refusal.lacks)
    lacking = next((kind for kind in kinds if kind in (NeedKind.CPU, NeedKind.MEMORY)), None)
    held = held_without_gpus(state, refusal.nearest) if lacking else []
    left = (taken for _, taken in held)
    if not held or not _fits_without(state, pod, request, refusal.nearest, *left):
        return None
    is_cpu = lacking is NeedKind.CPU
    sizes = {other.key: taken.cpu_milli if is_cpu else taken.memory_mib for other, taken in held}
    total = sum(sizes.values())
    holds = Word.CPUS(count=f"{total / 1000:g}", s="s" * (total != 1000))
    largest = sorted(sizes, key=lambda key: (-sizes[key], key))
    named = listed([shorten(key, KEY) for key in largest], _NAMED)
    amount = holds if is_cpu else Word.MEMORY_GIB(count=total >> 10)
    return Fix(Word.MOVE_WITHOUT_GPUS(node=refusal.nearest, amount=amount, pods=named))


def held_without_gpus(state: State, node: str) -> list[tuple[Pod, Allocation]]:
    """Movable pods without GPUs on a node, and the resources that they hold."""
    return [
        (pod, taken)
        for pod in state.pods.on_node(node)
        if (taken := state.allocations.allocation_of(pod.key))
        and not taken.has_gpus
        and not (pod.owner and pod.owner.kind in ("DaemonSet", "Node"))
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
