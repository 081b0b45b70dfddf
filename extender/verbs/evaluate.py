"""Evaluates a pod on named nodes: a reason code and a cost for each, for every verb and for explain.

The costs determine a strict order of the nodes, and scores of which only the best node's is 10.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from extender.background import with_turns
from extender.cluster.node_table import pods_have_gpus
from extender.cluster.other_resources import asked_by, is_of_dra
from extender.cluster.state import Rows, State
from extender.dra.forecast import (
    FIRST_AVAILABLE_PENALTY,
    UNFINISHED,
    AllocationSimulator,
    Forecast,
    SearchBudget,
)
from extender.dra.node_devices import GpuFacts
from extender.dra.pod_claims import class_resources
from extender.k8s.objects import Pod
from extender.k8s.resource_slices import DeviceId
from extender.protocol.node_names import NodeNames
from extender.queues.queue import is_restartable
from extender.untrusted.limits import MOST_STEPS
from extender.verbs import evaluation_kernels as kernels
from extender.verbs.gang_room import refuse_outside
from extender.verbs.reason_codes import Codes, codes_for, may_stack, never_aligned, refuse, stacked_is_better
from packing.fleet.arrays import Flags, Floats
from packing.fleet.feasibility import (
    any_doubtful,
    fits_when_empty,
    gpu_sizes,
    missing_gpus,
    reason_on_row,
    reasons_for,
    separation,
)
from packing.fleet.fleet import Fleet
from packing.fleet.names import NodeKind, allows
from packing.fleet.node_usage import Allocation
from packing.model.gpu_catalog import find_model
from packing.model.reasons import Reason
from packing.model.request import ANY_MODEL, Request

Keys = npt.NDArray[np.int64]

MAX_SCORE = 10
"""kube-scheduler's maximum score of an extender (``MaxExtenderPriority``)."""
# By plain integers: numpy would iterate over all members of the enum in each call.
_TEXTS = {reason.value: reason.text for reason in Reason}
_CODES = max(_TEXTS) + 1

SPOT_BIAS = 2.0
"""Extra cost of a node of the other kind, in GPUs per GPU of the pod. A placement costs about one per GPU on
average (``packing/cost/slots.py``), so a pod goes to its preferred kind unless the GPUs there are much
scarcer. Policies other than ``inventory`` have costs up to 100, so there it only breaks ties."""
MISALIGNED_COST = 2.0
"""Extra cost in GPUs of a node whose kubelet starts the pod on more NUMA nodes than it prefers: the same as
``SPOT_BIAS``."""
MISSING_GPU_COST = 1000.0
"""Cost of allocating another fraction of a GPU instead of a GPU: exceeds all costs of policies."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``rows``, ``codes``, ``cost`` and ``keys`` (to rank nodes) are parallel to the given names.

    ``cost`` and ``keys`` are meaningful only where ``codes`` is 0. Row -1 is an unknown node. ``forecasts``
    have the devices that the pod's claims would be allocated; empty for a pod that needs no claims.
    ``_tally``: counts of ``codes``, empty until computed; copies count again.
    """

    pod: Pod
    request: Request
    rows: Rows
    codes: Codes
    cost: Floats
    keys: Keys
    forecasts: tuple[Forecast, ...] = ()
    _tally: list[int] = field(default_factory=list, init=False, compare=False, repr=False)

    def tally(self) -> list[int]:
        """Number of nodes with each code, up to the highest code or beyond. Read only."""
        if not self._tally:
            self._tally.extend(np.bincount(self.codes, minlength=1).tolist())
        return self._tally

    @property
    def fitting(self) -> int:
        return self.tally()[0]

    def counts(self) -> dict[str, int]:
        """Number of nodes by the text of their reason; "fits" for those that fit."""
        return {_TEXTS[code]: count for code, count in enumerate(self.tally()) if count}

    @property
    def certain(self) -> Flags:
        """(N,) where the pod fits and, as far as is known, its claims would be allocated."""
        fits: Flags = self.codes == Reason.FITS
        if self.forecasts:
            fits &= np.array([not forecast.problem for forecast in self.forecasts])
        return fits

    @property
    def unfinished(self) -> bool:
        """Whether ``search_devices`` would find devices that are not known yet."""
        return any(forecast.problem == UNFINISHED for forecast in self.forecasts)

    @property
    def tells_apart(self) -> bool:
        """Whether any known difference makes one node better than another."""
        return self.request.wants_gpu or any(forecast.devices for forecast in self.forecasts)

    def only(self, which: Flags) -> Evaluation:
        """The evaluation of a subset of the nodes, (N,)."""
        at = np.flatnonzero(which)
        if at.size == which.size:
            return self
        forecasts = tuple(self.forecasts[index] for index in at.tolist()) if self.forecasts else ()
        rows, codes, cost, keys = self.rows[at], self.codes[at], self.cost[at], self.keys[at]
        return replace(self, rows=rows, codes=codes, cost=cost, keys=keys, forecasts=forecasts)


def evaluate(
    state: State,
    pod: Pod,
    request: Request,
    names: NodeNames,
    *,
    simulator: AllocationSimulator | None = None,
) -> Evaluation:
    """Evaluate every named node with the chosen policy. Whether a node fits does not depend on its cost:
    if costs or forecasts fail, nodes that fit rank equal. ``simulator`` replaces the state's own."""
    rows = state.rows(names)
    counted = _evaluate_counted(state, pod, request, (), rows)
    dra = dra_resources(state, pod, request, names)
    for resources in {*dra} - {()} if dra else ():
        there = np.array([offered == resources for offered in dra])
        others = _evaluate_counted(state, pod, request, resources, rows[there])
        counted.codes[there], counted.cost[there] = others.codes, others.cost
        counted = _Counted(counted.codes, counted.cost)
    if (codes := refuse_outside(state, pod, request, rows, counted.codes)) is not counted.codes:
        counted = counted._replace(codes=codes, tally=())
    forecasts = _forecast(state, pod, names, dra, simulator or state.simulator)
    if forecasts and (has_words(request) or state.devices.two_ways):
        counted = _refuse_devices(state, pod, request, names, dra, forecasts, counted)
    cost, keys = _rank(state, pod, request, rows, counted, forecasts)
    evaluation = Evaluation(pod, request, rows, counted.codes, cost, keys, forecasts)
    evaluation._tally.extend(counted.tally)
    return evaluation


def reason_on(
    state: State,
    pod: Pod,
    request: Request,
    node: str,
    *,
    idle: bool = False,
    without: Sequence[Allocation] = (),
) -> Reason:
    """The reason code of one node, as in ``evaluate``; ``idle``: as if its device plugin were idle;
    ``without`` the allocations of pods that would be removed."""
    row = state.fleet.rows.get(node)
    if row is None:
        return state.unknown_node
    rows, dra = np.array([row]), next(iter(dra_resources(state, pod, request, [node])), ())
    if wants_only_dra(pod, request, dra):
        codes = np.array([_reason_of_dra(state, request, node)], np.int8)
    else:
        with state.fleet_view_for(pod) as fleet, fleet.without(without, idle=[row] if idle else []):
            codes = codes_for(state, fleet, pod, without_resources(request, dra), rows)
    return Reason(int(refuse_outside(state, pod, request, rows, codes)[0]))


def when_idle(state: State, evaluation: Evaluation) -> Evaluation:
    """The evaluation with ``PLUGIN_BUSY`` only where the pod fits as soon as the device plugin is idle. Other
    nodes with a busy plugin have their remaining reason, because waiting for the plugin would not help."""
    busy = np.flatnonzero(evaluation.codes == Reason.PLUGIN_BUSY)
    rows, codes = evaluation.rows[busy], evaluation.codes.copy()
    with state.fleet_view_for(evaluation.pod) as fleet, fleet.plugins_idle(rows):
        idle = codes_for(state, fleet, evaluation.pod, evaluation.request, rows)
    idle = refuse_outside(state, evaluation.pod, evaluation.request, rows, idle)
    codes[busy] = np.where(idle == Reason.FITS, np.int8(Reason.PLUGIN_BUSY), idle)
    return replace(evaluation, codes=codes)


class _Counted(NamedTuple):
    """Reason codes and costs of rows, (len(rows),) each. ``keys`` rank by these costs, None if unknown;
    ``tally``: number of rows with each code, empty if unknown."""

    codes: Codes
    cost: Floats
    keys: Keys | None = None
    tally: Sequence[int] = ()


def _evaluate_counted(state: State, pod: Pod, request: Request, dra: tuple[str, ...], rows: Rows) -> _Counted:
    """Evaluate these rows without the resources that are DRA devices there (``dra``)."""
    if wants_only_dra(pod, request, dra):
        codes = np.where(rows < 0, state.unknown_node, Reason.FITS).astype(np.int8)
        return _Counted(codes, np.zeros(rows.size, np.float32))
    request = without_resources(request, dra)
    with state.fleet_view_for(pod) as fleet:
        counted = _evaluate_as(state, fleet, pod, request, rows)
        if (stacked := request.stacked) is None:
            return counted
        others = _evaluate_as(state, fleet, pod, stacked, rows)
        better = stacked_is_better(fleet, rows, counted.codes, others.codes)
        costs = np.where(better, others.cost, counted.cost)
        return _Counted(np.where(better, others.codes, counted.codes), costs)


def _evaluate_as(state: State, fleet: Fleet, pod: Pod, request: Request, rows: Rows) -> _Counted:
    """Evaluate this form of the request only: the policy's cost, and that of GPUs that are not separate."""
    codes, cost = np.empty(rows.size, np.int8), np.empty(rows.size, np.float32)
    keys, tally = np.empty(rows.size, np.int64), np.zeros(_CODES, np.int64)
    bits = np.ascontiguousarray(state.policy.cost(fleet, request), np.float32).view(np.int32)
    of_rows = reasons_for(fleet, request), bits, fleet.arrays.order
    kernels.gather(rows, *of_rows, state.unknown_node.value, codes, cost.view(np.int32), keys, tally)
    counted = _Counted(codes, cost, keys, tally.tolist())
    if request.together > 1 and any_doubtful(fleet, request):
        with state.failures.caught("separate_gpus"):
            counted = _Counted(codes, cost + separation_costs(fleet, request, rows), tally=counted.tally)
    allowed = refuse(state, fleet, pod, request, rows, codes)
    return counted if allowed is codes else _Counted(allowed, counted.cost, counted.keys)


def form_on(fleet: Fleet, row: int, request: Request) -> Request:
    """The form of the request that fits on this node, if one does."""
    stacked = request.stacked
    return stacked if stacked and reason_on_row(fleet, request, row) is not Reason.FITS else request


def dra_resources(state: State, pod: Pod, request: Request, names: Iterable[str]) -> list[tuple[str, ...]]:
    """The requested extended resources that each node offers as DRA devices (KEP-5004): those of a device
    class that it does not advertise itself, and those that are named after their class. Empty if no class
    provides a requested resource."""
    by_name, known = class_resources(pod.spec), state.devices.extended_resources
    mapped = [name for name, _ in request.devices if name in known]
    others = [name for name in asked_by(pod) if name in known] if known else []
    if not (by_name or mapped or others):
        return []
    return [(*_dra_resources_on(state, mapped, others, name), *by_name) for name in names]


def _dra_resources_on(state: State, mapped: list[str], others: list[str], node: str) -> Iterator[str]:
    row, known = state.fleet.rows.get(node), state.nodes.get(node)
    if row is None or known is None:
        return
    yield from (name for name in others if is_of_dra(state, known, name))
    if not mapped:
        return
    if state.devices.on_node(node, state.nodes.labels_of(node)).has_pools:
        for name in mapped:
            index = state.fleet.names.resources.get(name)
            if index is None or not state.fleet.arrays.total_devices[index, row]:
                yield name


def wants_only_dra(pod: Pod, request: Request, dra: tuple[str, ...]) -> bool:
    """Whether the pod requests only DRA devices, on a node that offers these resources as such.
    kube-scheduler checks whether any are free."""
    return bool(dra or pod.spec.claims) and not without_resources(request, dra).wants_gpu


def has_words(request: Request) -> bool:
    """Whether the request depends on facts of GPUs that kube-scheduler ignores when it chooses devices."""
    named = request.models is not None or request.products != ANY_MODEL
    return bool(named or request.cuda or request.whole or request.device_mib or request.island)


def _reason_of_dra(state: State, request: Request, node: str, devices: Collection[DeviceId] = ()) -> Reason:
    """The reason code where kube-scheduler chooses all devices. All GPUs among the ``devices`` that it would
    choose must be permitted; if it would choose none now, any GPU of the node."""
    if request.island and request.gpus > 1:
        return Reason.ISLAND_TOO_SMALL
    if not has_words(request):
        return Reason.FITS
    on_node = state.devices.on_node(node, state.nodes.labels_of(node))
    parts, spec = on_node.gpus(), state.fleet.spec_of(node)
    chosen = [part for index, part in parts.items() if not devices or on_node.device_id(index) in devices]
    reasons = {_reason_of_facts(request, part.facts, spec.cuda if spec else 0) for part in chosen}
    if not devices and Reason.FITS in reasons:
        return Reason.FITS
    return min(reasons - {Reason.FITS}, default=Reason.FITS)


@lru_cache(maxsize=4096)
def _reason_of_facts(request: Request, facts: GpuFacts, cuda: int) -> Reason:
    """``cuda``: the version by the node's labels, where the driver publishes none."""
    model = find_model(facts.product)
    if not allows(request, NodeKind(model.name if model else None, facts.product)):
        return Reason.WRONG_MODEL
    if (facts.cuda or cuda) < request.cuda:
        return Reason.OLD_DRIVER
    if request.whole and not facts.whole:
        return Reason.PART_OF_A_GPU
    return Reason.SMALL_DEVICES if facts.memory_mib < request.device_mib else Reason.FITS


def _refuse_devices(
    state: State,
    pod: Pod,
    request: Request,
    names: NodeNames,
    dra: list[tuple[str, ...]],
    forecasts: tuple[Forecast, ...],
    counted: _Counted,
) -> _Counted:
    """The codes, with reasons where kube-scheduler would choose GPUs that the pod does not permit, and with
    ``OTHER_WAY`` where it would choose GPUs while pods use the node's device plugin."""
    codes, devices = counted.codes.copy(), state.devices
    for at, (name, forecast) in enumerate(zip(names, forecasts, strict=True)):
        if codes[at] == Reason.FITS and (
            forecast.devices or wants_only_dra(pod, request, dra[at] if dra else ())
        ):
            codes[at] = _reason_of_dra(state, request, name, forecast.devices)
        if name in devices.two_ways and pods_have_gpus(state.fleet, state.fleet.rows[name]):
            on_node = devices.on_node(name, state.nodes.labels_of(name))
            if not {on_node.device_id(index) for index in on_node.gpus()}.isdisjoint(forecast.devices):
                codes[at] = Reason.OTHER_WAY
    return counted._replace(codes=codes, tally=())


def without_resources(request: Request, resources: tuple[str, ...]) -> Request:
    """The request without these counted devices; the same object if there are none, for caches."""
    if not resources:
        return request
    return replace(request, devices=tuple(device for device in request.devices if device[0] not in resources))


def _forecast(
    state: State, pod: Pod, names: NodeNames, dra: list[tuple[str, ...]], simulator: AllocationSimulator
) -> tuple[Forecast, ...]:
    """The devices that the pod's claims would be allocated on each node; empty for a pod without claims."""
    if not pod.spec.claims and not any(dra):
        return ()
    with state.failures.caught("forecast"):
        state.devices.refresh(state.nodes.labels_of)
        nodes = ((name, state.nodes.labels_of(name)) for name in names)
        return tuple(simulator.forecasts(pod, nodes, dra or repeat(())))
    return (Forecast(problem="the forecast failed, see the log of Stowage"),) * len(names)


async def search_devices(state: State, pod: Pod, names: NodeNames) -> None:
    """Search the devices for the pod's claims on all these nodes. Other tasks run between two nodes, while
    ``evaluate`` searches at most ``STEPS_AT_ONCE``. Its results are kept for ``evaluate``."""
    request = state.request_or_none(pod)
    dra = dra_resources(state, pod, request, names) if request else []
    if pod.spec.claims or any(dra):
        nodes = ((name, state.nodes.labels_of(name)) for name in names)
        each = state.simulator.each(pod, nodes, dra or repeat(()), SearchBudget(MOST_STEPS))
        with state.failures.caught("forecast"):
            async for _ in with_turns(each, 2):
                pass


def _rank(
    state: State, pod: Pod, request: Request, rows: Rows, counted: _Counted, forecasts: tuple[Forecast, ...]
) -> tuple[Floats, Keys]:
    """The costs, including those of forecasts and ``further_costs``, and the sort keys; if that fails, all
    nodes rank equal."""
    with state.failures.caught("rank"):
        cost = counted.cost
        cost = cost + _forecast_costs(forecasts) if forecasts else cost
        for _, more in further_costs(state, pod, request, rows):
            cost = cost + more
        if counted.keys is not None and cost is counted.cost:
            return cost, counted.keys
        return cost, rank_keys(cost, state.fleet.arrays.order[rows])
    return np.zeros(rows.size, np.float32), state.fleet.arrays.order[rows].astype(np.int64)


def further_costs(state: State, pod: Pod, request: Request, rows: Rows) -> Iterator[tuple[str, Floats]]:
    """Costs of these rows in addition to the policy's, by the name of each term: (len(rows),), in GPUs."""
    if state.fleet.spot_rows:
        yield "spot", spot_costs(state, pod, request, rows)
    if (far := state.gang_costs(pod, request)) is not None:
        yield "gang", far[rows]
    if (later := state.end_costs(pod)) is not None:
        yield "end", later[rows]
    if state.numa:
        misaligned = state.numa.misaligned(state.fleet, pod, rows, ["best-effort"], idle=False)
        yield "NUMA", MISALIGNED_COST * misaligned.astype(np.float32)


def _forecast_costs(forecasts: tuple[Forecast, ...]) -> Floats:
    """(N,) float32 costs. A node without a forecast has the mean of the others, so that it is neither
    preferred nor avoided."""
    known = np.array([bool(forecast.devices) for forecast in forecasts])
    cost = np.array([forecast.cost for forecast in forecasts], np.float32)
    cost += FIRST_AVAILABLE_PENALTY * np.array([forecast.rank for forecast in forecasts], np.float32)
    if known.any():
        cost[~known] = cost[known].mean()
    return cost


def hosts_when_empty(state: State, fleet: Fleet, evaluation: Evaluation) -> Flags:
    """(N,) the evaluated nodes that would accept the pod if they were empty."""
    request, rows = evaluation.request, evaluation.rows
    hosts = fits_when_empty(fleet, request)[rows]
    if stacked := request.stacked:
        hosts |= fits_when_empty(fleet, stacked)[rows] & may_stack(fleet, rows)
    never = never_aligned(state, fleet, evaluation.pod, rows, evaluation.codes)
    could: Flags = hosts & (rows >= 0) & ~never
    return could


def spot_costs(state: State, pod: Pod, request: Request, rows: Rows) -> Floats:
    """(len(rows),) extra costs in GPUs for being a spot node, or not being one: restartable pods prefer spot
    nodes, others avoid them. A pod without counted GPUs counts as one GPU."""
    if state.spot == "ignore":
        return np.zeros(rows.size, np.float32)
    preferred = is_restartable(pod, state.rights.queue_of(pod))
    sizes = gpu_sizes(state.fleet, request)[rows]
    cost = SPOT_BIAS * np.where(sizes > 0, sizes, np.float32(1))
    return np.where((state.fleet.arrays.spot[rows] > 0) == preferred, 0, cost).astype(np.float32)


def separation_costs(fleet: Fleet, request: Request, rows: Rows) -> Floats:
    """(len(rows),) extra costs of nodes that would allocate a container several fractions of one GPU."""
    if separation(fleet, request) == "ignore":
        return np.zeros(rows.size, np.float32)
    cost: Floats = np.float32(MISSING_GPU_COST) * missing_gpus(fleet, request, rows)
    return cost


def rank_keys(cost: Floats, order: npt.NDArray[np.uint32]) -> Keys:
    """(N,) int64 sort keys, lower is better: by cost, equal costs by ``order``.

    The bits of a float, read as a signed integer, sort like the float once all bits but the sign of negative
    floats are inverted.
    """
    keys = np.empty(cost.size, np.int64)
    kernels.sort_keys(np.ascontiguousarray(cost, np.float32).view(np.int32), order, keys)
    return keys


def shortlist(codes: Codes, keys: Keys, count: int, fitting: int) -> Flags:
    """(N,) the nodes with the lowest keys of the ``fitting`` ones (code 0), at most ``count`` of them."""
    if fitting <= count:
        fits: Flags = codes == 0
        return fits
    chosen = np.empty(codes.size, np.uint8)
    kernels.mark_lowest(codes, keys, np.empty(count, np.int64), chosen)
    return chosen.view(np.bool_)


def fitting_scores(codes: Codes, cost: Floats, keys: Keys) -> npt.NDArray[np.uint8]:
    """(N,) scores from 0 to 10. Of the nodes that fit (code 0), only the one with the lowest key has 10, and
    the others fall linearly with cost from 9 to 0; nodes that do not fit have 0."""
    scores = np.empty(codes.size, np.uint8)
    kernels.fill_scores(codes, cost, keys, MAX_SCORE, scores)
    return scores
