"""Changes MIG layouts of nodes for pods that fit nowhere, when their wait has cost more than the change.

The order is: mark the node, so that it accepts no new pods; move its pods, as for a large job; set the label
that the MIG manager follows; wait until the node advertises the devices of the layout; release the node. The
state of a change is an annotation of the node (``inventory.node_state.MigChange``), so a crash at any point
loses nothing, and an abandoned mark expires. If another party labels or cordons the node, Stowage stops it.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

from msgspec.structs import replace

from extender.background import with_turns
from extender.evictor.actions import Actions
from extender.evictor.book import Peaks, WaitClock
from extender.evictor.consolidation import Consolidation
from extender.evictor.decision import longest_grace
from extender.evictor.planner import Planner
from extender.inventory.devices import LAYOUT_LABEL, STATE_LABEL
from extender.inventory.mig_layouts import WHOLE, can_change, is_single, named_layouts, shows
from extender.inventory.node_state import MIG_CHANGE, MigChange, mig_change_of
from extender.k8s.objects import Node, Pod
from extender.trial.mig_search import (
    ChangeableNode,
    asking,
    gpus_asked,
    most_urgent,
    open_candidate,
    possible_changes,
    shapes,
    would_change,
)
from extender.trial.room_by_moves import holders, moves_off, rule_of, window_note
from packing.model.node_spec import NodeSpec
from packing.model.request import Request
from packing.plan.mig_layouts import ChangeRule, served

_LOOK, _AGAIN = 5.0, 60.0
"""Seconds between two checks of pending pods, and after a fruitless check or a failed write."""
_AT_ONCE, _ASKED = 25, 2
"""Nodes that are checked, and pods that are evaluated, before other tasks run: about a millisecond."""
_READ = 10  # pending pods whose requests are read before other tasks run: 1 ms each with many resources
_SETTLE = 10.0
"""Seconds from the mark to the label: until then, kube-scheduler may bind a pod that was accepted before."""
_LONGEST_GRACE = 3600.0
"""Maximum seconds to wait for terminating pods, in addition to those of the change."""
_LEFT_ALONE = 86_400.0
"""Seconds for which a node is not changed after a failure."""

_log = logging.getLogger(__name__)


class Write(NamedTuple):
    """The next write to a node: the annotation (None removes it), the label ("": unchanged), the result of
    the change (one of ``LAYOUTS`` of the metrics, "" for none yet), and its text."""

    change: MigChange | None
    label: str = ""
    result: str = ""
    said: str = ""


def next_write(node: Node, change: MigChange, rule: ChangeRule, now: float, *, is_free: bool) -> Write | None:
    """The next step of a change; None to wait. ``is_free``: no pod holds a GPU of the node. ``now`` in Unix
    seconds."""
    before, after = change.before.name, change.after.name
    if not change.is_active:
        return None if change.lasts(now) or change.step == "done" else Write(None)
    label, wanted = node.labels.get(LAYOUT_LABEL), after if change.step == "apply" else before
    if label != wanted or node.unschedulable:
        why = "it was cordoned" if label == wanted else f"its label was set to {label}"
        return Write(None, result="taken_over", said=f"{why} by another party, so Stowage stopped the change")
    is_late = not change.closes(now)
    match change.step:
        case "drain" if is_free and not is_late and now >= change.since + _SETTLE:
            return Write(replace(change, step="apply", until=now + rule.seconds), after)
        case "drain" if is_late:
            kept = replace(change, step="given_up", until=now + rule.keep)
            return Write(kept, "", "given_up", "its pods were not moved in time, so it keeps its layout")
        case "apply" if shows(node, change.after):
            done = replace(change, step="done", until=now + rule.keep)
            return Write(done, "", "done", f"layout {after} is applied")
        case "apply" if is_late or node.labels.get(STATE_LABEL) == "failed":
            return Write(replace(change, step="revert", until=now + rule.seconds), before)
        case "revert" if shows(node, change.before) or is_late:
            result = "failed" if is_late and not shows(node, change.before) else "reverted"
            back = f"{before} is {'restored' if result == 'reverted' else 'not restored'}"
            said = f"the MIG manager did not apply {after}; {back}. Stowage changes no layout for a day, "
            said += f"or until the annotation {MIG_CHANGE} of the node is removed"
            return Write(replace(change, step="failed", until=now + _LEFT_ALONE), "", result, said)
    return None


class _Step(NamedTuple):
    """A step that this replica wrote last, or found when it began to lead. ``at``: by the clock."""

    change: MigChange
    at: float


class LayoutChanges:
    """The evictor's plan that changes MIG layouts. The state of changes is on the nodes, so that the next
    leader goes on. A node's agent may write it, too: what delays *other* nodes is kept here."""

    def __init__(self, actions: Actions, planner: Planner, moves: Consolidation) -> None:
        self._actions, self._planner, self._state = actions, planner, actions.state
        self._settings, self._clock, self._wall = actions.settings, actions.clock, actions.wall
        self._moves = moves
        self._rule = ChangeRule(
            seconds=self._settings.mig_layout_seconds,
            price=self._settings.consolidation_price,
            after=self._settings.consolidation_after_seconds,
            nodes=self._settings.mig_layouts_at_once,
            per_hour=self._settings.mig_layouts_per_hour,
        )
        self.forget()

    def forget(self) -> None:
        """This replica does not lead."""
        self._waited, self._peaks = WaitClock(), Peaks()
        self._seconds: dict[str, float] = {}  # seconds that each pod has waited, by UID
        self._looked, self._next = -_LOOK, -math.inf
        self._delays: dict[str, float] = {}  # of nodes whose write failed, or whose change is not ours
        self._ours, self._leads = dict[str, _Step](), False  # by node; whether this replica has led

    async def round(self, waiting: Sequence[Pod]) -> None:
        """Continue each change that has begun, and begin one if it is worthwhile."""
        nodes = [node for node in self._state.nodes.values() if MIG_CHANGE in node.annotations]
        marked = [(node, change) for node in nodes if (change := mig_change_of(node.annotations))]
        now, names = self._clock(), {node.name for node, _ in marked}
        if self._leads:  # our changes are those whose mark has not been removed, at first all but failed ones
            self._ours = {k: v for k, v in self._ours.items() if k in names or now < v.at + _SETTLE}
        else:
            self._ours = {n.name: _Step(change, now) for n, change in marked if change.step != "failed"}
        self._leads = True
        for node, change in marked if self._settings.evictor == "on" else ():
            if self._clock() >= self._delays.get(node.name, -math.inf):
                with self._actions.guarded(node.name):
                    await self._go_on(node, change)
        if self._settings.mig_layouts != "off" and self._clock() - self._looked >= _LOOK:
            self._looked = self._clock()
            await self._look(waiting)

    async def _go_on(self, node: Node, change: MigChange) -> None:
        steps = self._ours
        is_ours = node.name in steps and steps[node.name].change.since == change.since
        if change.step == "drain" and self._settings.mig_layouts != "on":
            return  # no pod moves for another Stowage's mark, which expires
        if change.step == "drain" and not is_ours and change.closes(self._wall()):
            return  # nor for that of a node's agent
        closed = change.step == "drain" and window_note(self._settings, self._wall())
        is_free = not (closed or holders(self._state, node.name))
        write = next_write(node, change, self._rule, self._wall(), is_free=is_free)
        if write is None:
            if change.step == "drain" and not (is_free or closed):
                await self._moves.empty(node.name)
            return
        if is_ours and write.change:
            steps[node.name] = _Step(write.change, self._clock())
        self._delays[node.name] = self._clock() + (_LOOK if is_ours else _AGAIN)
        if not await self._actions.write_layout(node, write.change, write.label):
            return
        if is_ours:
            del self._delays[node.name]
        text = f"MIG layout of node {node.name}, from {change.before.name} to {change.after.name}: "
        text += write.said or (write.change.step if write.change else "expired")
        _log.info("%s", text)
        if write.result:
            self._actions.metrics.layouts.labels(write.result).inc()
            await self._actions.say_layout(node, write.result, text)
        pod = self._state.pods.get(change.pod)
        if write.result == "done" and pod is not None and self._planner.waits(pod):
            await self._actions.hold_free_room(pod, node.name)

    async def _look(self, waiting: Sequence[Pod]) -> None:
        now, spec_of = self._clock(), self._state.fleet.spec_of
        labeled = [
            (node, spec_of(node.name)) for node in self._state.nodes.values() if LAYOUT_LABEL in node.labels
        ]
        capable = [(node, spec) for node, spec in labeled if spec and can_change(node, spec)]
        most = max((len(spec.gpus) for _, spec in capable), default=0)
        offered = self._offered(capable)
        ungated = with_turns([pod for pod in waiting if not pod.gates], _READ)
        asked = most_urgent([a async for pod in ungated for a in asking(self._state, pod, offered, most)])
        total, demand = self._census(capable, asked)
        self._peaks.see(demand, now)
        if not asked:
            self._waited.keep(())
            return
        each = [self._candidate(node, total) async for node, _ in with_turns(capable, _AT_ONCE)]
        candidates = [found for found in each if found]
        await self._count_waits(asked, candidates, now)
        changes, wall = [step.change for step in self._ours.values()], self._wall()
        longest = 3 * self._rule.seconds + _LONGEST_GRACE  # of all steps
        active = sum(change.is_active and wall < change.since + longest for change in changes)
        failed = any(change.step == "failed" and change.lasts(wall) for change in changes)
        may_begin = not failed and self._rule.may_begin([change.since for change in changes], active, wall)
        if may_begin and candidates and now >= self._next:
            await self._begin(candidates, [pod for pod, _ in asked])

    def _offered(self, capable: Iterable[tuple[Node, NodeSpec]]) -> set[str]:
        """The resources that these nodes offer, or would with another layout."""
        offered, layouts = {WHOLE}, self._state.nodes.layouts
        kinds = {}
        for node, spec in capable:
            kinds[spec.model, len(spec.gpus), is_single(node, spec), id(layouts.on(node.name))] = node, spec
            offered.update(pool.resource for pool in spec.pools)
        for node, spec in kinds.values():
            offered.update(*(layout.devices for layout in named_layouts(node, spec, layouts.on(node.name))))
        return offered

    def _census(
        self, capable: Iterable[tuple[Node, NodeSpec]], asked: Sequence[tuple[Pod, Request]]
    ) -> tuple[Counter[str], Counter[str]]:
        """Devices of these nodes, and those in use or requested, by model and resource."""
        fleet, total, demand, pending = self._state.fleet, Counter[str](), Counter[str](), Counter[str]()
        for node, spec in capable:
            free = fleet.arrays.free_devices[:, fleet.rows[node.name]]
            for pool in spec.pools:
                name = f"{spec.model} {pool.resource}"
                total[name] += pool.total
                demand[name] += pool.total - int(free[fleet.names.resources[pool.resource]])
        for _, request in asked:
            pending.update(dict(request.devices))
        for model in {spec.model for _, spec in capable}:
            demand.update({f"{model} {name}": count for name, count in pending.items()})
        return total, demand

    def _candidate(self, node: Node, total: Counter[str]) -> ChangeableNode | None:
        """The node, if it may change now, with the layouts that leave enough devices for recurring demand."""
        if (candidate := open_candidate(self._state, node, self._wall())) is None:
            return None
        today, *named = (
            {f"{candidate.spec.model} {name}": count for name, count in layout.devices.items()}
            for layout in (candidate.today, *candidate.others)
        )
        enough = (self._peaks.leaves_enough(total, today, devices) for devices in named)
        others = tuple(compress(candidate.others, enough))
        return dataclasses.replace(candidate, others=others) if others else None

    async def _count_waits(
        self, asked: Sequence[tuple[Pod, Request]], candidates: Sequence[ChangeableNode], now: float
    ) -> None:
        """Count how long each pod has waited while a node could have served it and enough GPUs were free."""
        parts = self._state.fleet.arrays.free_parts().sum(axis=0)
        free = sum(float(parts[self._state.fleet.rows[found.node.name]]) for found in candidates)
        layouts = {id(layout): layout for found in candidates for layout in found.others}.values()
        self._seconds = {}
        async for pod, request in with_turns(asked, _ASKED):
            wanted = shapes([(pod, request)])
            enough = gpus_asked(request) <= free and any(served(layout.devices, wanted) for layout in layouts)
            self._seconds[pod.uid] = self._waited.look(pod.uid, now, enough=enough)
        self._waited.keep(self._seconds.keys())

    async def _begin(self, candidates: Sequence[ChangeableNode], pods: Sequence[Pod]) -> None:
        if not self._is_worth(min(found.gpus for found in candidates) * self._rule.seconds, pods):
            return
        self._next = self._clock() + _AGAIN
        late = [pod for pod in pods if self._seconds[pod.uid] >= self._rule.after]
        late = [pod async for pod in with_turns(late, _ASKED) if self._planner.needs_room(pod)]
        steps = possible_changes(self._state, self._settings, candidates, late, self._lost)
        changes = [change async for change in with_turns(steps, 1) if change]
        worth = (change for change in changes if self._is_worth(change.lost, change.pods))
        best = min(worth, key=lambda change: (change.price, change.name), default=None)
        if best is None or self._state.nodes.get(best.name) != best.candidate.node:
            return
        # Other tasks have run since the search.
        lost, starting = self._lost(best.candidate), list(filter(self._planner.needs_room, best.pods))
        if lost is None or not self._is_worth(lost, starting):
            return
        later = window_note(self._settings, self._wall(), self._rule.seconds)
        if later or "recommend" in (self._settings.mig_layouts, self._settings.evictor):
            what, reason = (best.name, best.layout.name), "MigLayoutRecommended"
            note, details = would_change(best, named=False) + later, would_change(best) + later
            said = await self._actions.recommend(best.pods[0], what, reason, note, details)
            self._actions.metrics.layouts.labels("recommended").inc(said)
            return
        room = moves_off(self._state, best.name, self._wall(), rule_of(self._settings))
        grace = longest_grace(self._state, [move.pod for move in room.moves]) if room and room.moves else 0.0
        now, first = self._wall(), best.pods[0]
        until = now + self._rule.seconds + min(grace, _LONGEST_GRACE)
        change = MigChange(best.candidate.today, best.layout, "drain", now, until, first.key)
        self._ours[best.name] = _Step(change, self._clock())
        if await self._actions.write_layout(best.candidate.node, change):
            self._actions.metrics.layouts.labels("begun").inc()
            _log.info("%s", would_change(best))
            await self._actions.say_layout(
                best.candidate.node, "begun", would_change(best, named=False), first
            )

    def _is_worth(self, lost: float, pods: Iterable[Pod]) -> bool:
        starting = [(gpus_asked(self._state.request_of(pod)), self._seconds[pod.uid]) for pod in pods]
        return self._rule.is_worth(lost, starting)

    def _lost(self, found: ChangeableNode) -> float | None:
        room = moves_off(self._state, found.node.name, self._wall(), rule_of(self._settings))
        if room is None:
            return None
        last = mig_change_of(found.node.annotations)
        return self._rule.lost(found.gpus, room.lost, self._wall() - last.since if last else math.inf)
