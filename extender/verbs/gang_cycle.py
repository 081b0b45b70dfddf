"""Kubernetes' own gangs, whose members kube-scheduler asks about in one cycle, before it binds any of them.

See ``podGroupCycle`` in ``pkg/scheduler/schedule_one_podgroup.go``, v1.37.2. If not all fit, it takes
all pods of lower priority out of its own snapshot, asks about the members once more, and then puts back the
most important pods as far as its own filters allow (``selectVictimsOnDomain`` in
``pkg/scheduler/framework/preemption/podgrouppreemption.go``). It never calls ``preempt``, and no message says
which world it asks about. But it counts devices, CPU and memory itself and names no node that lacks them. So
where it names a node that is full by our books, pods have left its snapshot.

It evicts nobody for what it does not count, such as shares of a GPU: that is left to the evictor.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from extender.cluster.state import State
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.verbs.evaluate import Evaluation, evaluate, rank_keys
from extender.verbs.eviction.plan import plan_evictions
from packing.model.reasons import Reason
from packing.model.request import Request

_COUNTED = (Reason.NO_FREE_GPUS, Reason.NO_FREE_CPU, Reason.NO_FREE_MEMORY)


def evaluate_in_cycle(state: State, pod: Pod, request: Request, names: NodeNames) -> Evaluation:
    """``evaluate``; for a member of such a gang nodes fit, too, that are full by our books, if evictions make
    room there. They are worse than all others, and ordered by what the evictions cost."""
    evaluation = evaluate(state, pod, request, names)
    if not pod.pod_group or pod.never_preempts or not request.devices:
        return evaluation
    full = np.isin(evaluation.codes, _COUNTED)
    if not full.any():
        return evaluation
    at = {name: index for index, name in enumerate(names) if full[index]}
    plans = plan_evictions(state, pod, [*at], time.time())
    if not plans:
        return evaluation
    codes, cost = evaluation.codes.copy(), evaluation.cost.copy()
    dearest = cost[codes == Reason.FITS].max(initial=0.0)
    for order, plan in enumerate(plans, 1):
        codes[at[plan.node]], cost[at[plan.node]] = Reason.FITS, dearest + order
    keys = rank_keys(cost, state.fleet.arrays.order[evaluation.rows])
    return replace(evaluation, codes=codes, cost=cost, keys=keys)
