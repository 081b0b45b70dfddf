"""Ways to make room for a pod or a gang that does not fit: a pod that ends, or pods that move."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from extender.cluster.other_resources import PODS, asked_by, lacking_on, totals_of
from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.state import State
from extender.dialects.pod_resources import RequestError, effective_requests
from extender.explain.answers import Actor, EvictionOption, Evictions, EvictorMode, NeedKind, Refusal
from extender.explain.fixes import Change, Fix
from extender.explain.needs import cpus_said, memory_said
from extender.explain.what_if import Question, allocations_of, fit_at_once, fitting_after, missing_members
from extender.explain.words import Word
from extender.inventory.devices import LAYOUT_LABEL
from extender.inventory.gpu_labels import INSTANCE_TYPE
from extender.inventory.node_inventory import inventory_of
from extender.inventory.node_state import copy_of
from extender.k8s.affinity import PINNED_OWNERS
from extender.k8s.objects import Node, Pod
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
    window_note,
    would_make_room,
)
from extender.untrusted.limits import KEY, LISTED_NAMES, shorten
from extender.untrusted.visible import listed
from extender.verbs.evaluate import dra_resources
from extender.verbs.eviction.node_pods import gpus_held
from extender.verbs.eviction.plan import EvictionPlan, gpu_hours, losses, plan_evictions
from extender.verbs.eviction.promising import promising_nodes
from extender.verbs.gang_fit import gang_may_fit
from packing.fleet.feasibility import copies_that_fit
from packing.fleet.node_usage import Allocation
from packing.model.reasons import Reason
from packing.plan.move_rule import MoveRule

_TRIED, _GANG_TRIED, _NODES, _LAYOUTS = 24, 256, 8, 256
"""Maximum number of pods and of nodes tried, and of nodes tried with another MIG layout."""
_WHO = {"on": Word.MOVES_BY_EVICTOR, "recommend": Word.LET_MOVE}
_NAMED = 3
BEST = 3
"""Maximum number of nodes shown where evictions help."""


def room_by_others(asked: Question, now: float) -> Iterator[Fix]:
    """Who could move elsewhere so that the pod fits, or its whole gang, and who does it; none if no few moves
    are known to be enough. ``now`` in Unix seconds."""
    state, settings = asked.state, asked.settings
    permitted, pods = PermittedRows(state), starting_together(state, asked.pod)
    mode: Mode = "off"
    if settings and (asked_by_all := asked_together(state, pods)):
        serves = sum(request.gpus for request in asked_by_all) >= settings.consolidation_gpus
        mode = mode_for(state, pods[0], settings) if serves else "off"

    def nodes_of(other: Pod) -> list[str]:
        rows = permitted.rows_that_accept(other)
        return [name for name, row in state.fleet.rows.items() if rows[row]]

    usual = rule_of(settings) if settings else MoveRule()
    for rule in ((usual, None) if mode != "off" else (None,)) if pods else ():
        room = room_by_moves(state, pods, nodes_of, now, most=usual.moves, rule=rule, questions=_TRIED)
        if room:
            note = window_note(settings, now) if settings and rule else ""
            yield Fix((_WHO[mode] if rule else Word.MOVES)(moves=would_make_room(room) + note))
            return


def layout_change_for(asked: Question, now: float) -> Iterator[Fix]:
    """Which node that nobody uses could get another MIG layout so that the pod fits, and who does it. ``now``
    in Unix seconds."""
    state, given = asked.state, asked.settings or Settings()
    if asked.pod.spec.claims or not gpus_asked(asked.request):
        return
    labeled = (node for node in state.nodes.values() if LAYOUT_LABEL in node.labels)
    nodes = (open_candidate(state, node, now) for node in labeled)
    idle = [node for node in islice(filter(None, nodes), _LAYOUTS) if node.is_idle]
    seconds = given.mig_layout_seconds
    changes = possible_changes(state, given, idle, [asked.pod], lambda node: node.gpus * seconds)
    for change in islice(filter(None, changes), 1):
        name, layout = shorten(change.name, KEY), shorten(change.layout.name, KEY)
        give = Word.GIVE_LAYOUT(node=name, layout=layout, label=LAYOUT_LABEL)
        wait = Word.WAIT_LAYOUT(change=would_change(change) + window_note(given, now, seconds))
        yield Fix(wait if given.mig_layouts == "on" else give)


def ends(asked: Question) -> Iterator[Fix]:
    """Pods whose end may free enough room, the fewest first: for a pod that starts by itself one, preferably
    one that must end soon; those that this one replaces; all that can end on a node, for a gang on several.
    """
    state, pod, used_up = asked.state, asked.pod, asked.candidates.used_up
    names = [name for name in asked.candidates.names if name not in used_up]
    held = list(islice(_holders_on(asked, names), _GANG_TRIED if asked.is_gang else _TRIED))
    if not asked.is_gang:
        held.sort(key=lambda other: state.end_costs.declared_end(other)[0])
    old = [other for other in held if _replaces(pod, other)]
    able = [other for other in held if not (_is_pinned(other) or reserves_only(other) or other in old)]
    yield from map(_once_gone, () if asked.is_gang else zip(able))
    yield from map(_rollout, [old] if asked.is_gang and old else zip(old))
    nodes, gone = dict[str, list[Pod]](), list[Pod]()
    for other in able:
        nodes.setdefault(other.node_name, []).append(other)
    for name in sorted(nodes, key=lambda name: len(nodes[name]))[:_NODES] if asked.is_gang else nodes:
        here = Change(gone=tuple(nodes[name]), among=(name,))
        if not asked.is_gang:
            yield _once_gone(nodes[name])
        elif fitting_after(state, pod, here, with_gang=False):
            gone += nodes[name]
            yield _once_gone(gone)


def _rollout(old: Sequence[Pod]) -> Fix:
    of_ray = old[0].owner is not None and old[0].owner.kind == "RayCluster"
    return _once_gone(old, Word.ROLLOUT_OF_RAY if of_ray else Word.ROLLOUT)


def _once_gone(pods: Sequence[Pod], word: Word | None = None) -> Fix:
    nodes = list(dict.fromkeys(other.node_name for other in pods))
    named, word = listed([shorten(other.key, KEY) for other in pods], _NAMED), word or Word.WAIT_END
    said = word(pods=named, node=" and ".join(shorten(node, KEY) for node in nodes), s="s" * (len(pods) == 1))
    return Fix(said, change=Change(gone=tuple(pods), among=nodes))


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


def added_nodes(asked: Question, like: str) -> Iterator[Fix]:
    """As many more nodes like this one as the pod, or its gang, lacks, if such a node takes the pod."""
    state, pod = asked.state, asked.pod
    if (node := state.nodes.get(like)) is None:
        return
    new = inventory_of(copy_of(node, f"{like}-new"), layouts=state.nodes.layouts.on(like))
    if new.spec.blocked is not Reason.FITS:  # such as by a MIG layout that this node never got
        return
    gone = tuple(other for other in state.pods.on_node(like) if not _is_pinned(other))
    change: Change | None = Change(nodes={like: copy_of(node, f"{like}-new")}, gone=gone, among=(like,))
    count, missing = 1, missing_members(state, pod) if asked.is_gang else 1
    if missing > 1:
        rest = missing - fit_at_once(state, pod, asked.request, missing)
        if rest <= 0 or change is None or not fitting_after(state, pod, change, with_gang=False):
            return
        with state.fleet.without(tuple(allocations_of(state, gone))):
            copies = copies_that_fit(state.fleet, asked.request)
        each = 1 if copies is None else int(copies[state.fleet.rows[like]])
        count, change = -(-rest // max(each, 1)), None
    machine = node.labels.get(INSTANCE_TYPE, "")
    what = Word.OF_TYPE(type=shorten(machine, KEY)) if machine else ""
    word = Word.ADD_NODE if count == 1 else Word.ADD_NODES
    yield Fix(word(count=count, node=like, type=what), change=change)


def pods_without_gpus(asked: Question, refusal: Refusal) -> Iterator[Fix]:
    """Pods without GPUs that hold the missing CPU or memory of the nearest node: those that can move, else
    those of DaemonSets."""
    kinds = (need.kind for need in refusal.lacks)
    lacking = next((kind for kind in kinds if kind in (NeedKind.CPU, NeedKind.MEMORY)), None)
    for word, pinned in ((Word.MOVE_WITHOUT_GPUS, False), (Word.DAEMONSETS_HOLD, True)) if lacking else ():
        held = held_without_gpus(asked.state, refusal.nearest, pinned=pinned)
        is_cpu = lacking is NeedKind.CPU
        sizes = {other.key: taken.cpu_milli if is_cpu else taken.memory_mib for other, taken in held}
        largest = sorted(sizes, key=lambda key: (-sizes[key], key))
        named = listed([shorten(key, KEY) for key in largest], _NAMED)
        amount = (cpus_said if is_cpu else memory_said)(sum(sizes.values()))
        change = Change(gone=tuple(other for other, _ in held), among=(refusal.nearest,))
        if held:
            yield Fix(word(node=refusal.nearest, amount=amount, pods=named), change=change)


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


def _holders_on(asked: Question, names: Sequence[str]) -> Iterator[Pod]:
    """Pods with GPUs on the nodes that lack least, the smallest first on each."""
    state, pod = asked.state, asked.pod
    promising = promising_nodes(state, pod, asked.request, names, {})
    for others in (state.pods.on_node(node.name) for node in promising if not node.by_claims):
        staying = (other for other in others if other.uid != pod.uid and not other.deleting)
        held = [(other, taken) for other in staying if (taken := state.allocations.allocation_of(other.key))]
        sizes = [(gpus_held(state.fleet, (taken,)), o.key, o) for o, taken in held if taken.has_gpus]
        yield from (other for _, _, other in sorted(sizes, key=lambda size: size[:2]))


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
    rules = state.rules_for(pod, now, to_equals=actor == "evictor")
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
    taken, wanted, spec = Counter[str](), _requests(pod), state.fleet.spec_of(node.name)
    for other in state.pods.on_node(node.name):
        taken.update(_requests(other) if other.uid != pod.uid else {})
    totals = totals_of(node, wanted.keys() & node.allocatable.keys())
    totals |= {"cpu": spec.cpu_milli} if spec else {}
    return any(total - taken[name] < wanted.get(name, 0) for name, total in totals.items())


def _requests(pod: Pod) -> dict[str, int]:
    with suppress(RequestError):
        return {**effective_requests(pod.held), PODS: 1}
    return {PODS: 1}
