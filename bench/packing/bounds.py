"""Bounds on any placement of given pods, by mixed-integer programs over classes of equal nodes.

With x_ct pods of type t on the nodes of class c, ``fewest_nodes`` is, for y_c kept nodes of a class,

    min  sum_c y_c    subject to   sum_c x_ct >= d_t,   sum_t s_ctr x_ct <= k_cr y_c   for each resource r,
                                   x_ct <= m_ct y_c,    f_c <= y_c <= n_c

The nodes of a class pool their resources, and x need not be an integer, so no packing needs fewer nodes.
m_ct, the number of pods of a single type that fit on one node, prevents the bound from filling nodes with
fractions of large pods.

``fewest_whole`` is, for w_c whole GPUs that the pods take on the nodes of a class,

    min  sum_c w_c    subject to   sum_c x_ct = d_t,   sum_t s_ctr x_ct <= k_cr for each resource r,
                                   sum_t g_ct x_ct <= b_c + w_c,   0 <= w_c <= h_c,   x_ct <= m_ct

g_ct are the whole GPUs that a pod takes there, counting fractions; b_c are the free fractions of GPUs that
are not whole. With one node in each class it is the best result of any placement where devices are counted.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packing.fleet.arrays import Doubles, Longs

_TOLERANCE = 1e-6
_OF_SINGLE_PRECISION = 1e-3
"""The sizes of ``fewest_whole`` are sums of 32-bit floats."""
_Limits = Longs | Doubles | float
Entries = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
"""Rows, columns and values of a part of a matrix."""


class Classes(NamedTuple):
    """``nodes`` (C,) of each class, of which ``kept`` (C,) are kept in any case; ``counts`` (C,) whether
    nodes of the class count (1) or are kept anyway (0). ``capacity`` (C, R) of one node, ``sizes`` (C, T, R)
    of a pod there, and the number of pods of a single type that fit on one (``most``, (C, T))."""

    nodes: Longs
    kept: Longs
    counts: Longs
    capacity: Doubles
    sizes: Doubles
    most: Longs


class Groups(NamedTuple):
    """Totals over the nodes of a class: ``whole`` GPUs (C,), free fractions ``beside`` them (C,), and
    ``capacity`` (C, R). ``sizes`` (C, T, R) and ``takes`` (C, T) of a pod there, and the maximum number of
    pods of a type that fit (``most``, (C, T))."""

    whole: Longs
    beside: Doubles
    capacity: Doubles
    sizes: Doubles
    takes: Doubles
    most: Longs


def fewest_nodes(classes: Classes, demand: Longs, seconds: float = 5.0) -> int:
    """Lower bound on the number of counting nodes that hold ``demand`` (T,) pods of each type, however they
    are placed. Types that fit nowhere are left out. The search ends after ``seconds`` with the bound reached
    by then."""
    program = _Program(classes.most, demand)
    kept = int((classes.kept * classes.counts).sum())
    if not program.pods.size:
        return kept
    kinds, resources = classes.capacity.shape
    pods, on, most = program.pods, program.on, classes.most[program.on, program.of]
    program.require(demand * (classes.most > 0).any(axis=0), np.inf, (program.of, pods, np.ones(len(pods))))
    each = np.arange(kinds * resources)
    room = each, each // resources, -classes.capacity.ravel()
    program.require(-np.inf, np.zeros(len(each)), program.taken(classes.sizes), room)
    rows = np.arange(len(pods))
    program.require(-np.inf, np.zeros(len(pods)), (rows, pods, np.ones(len(pods))), (rows, on, -most))
    columns = classes.counts, classes.kept, classes.nodes
    bound = program.least(*columns, np.inf, seconds, whole_pods=False)
    all_of_them = int((classes.nodes * classes.counts).sum())  # requests exceed the fleet: all are kept
    return all_of_them if bound is None else max(kept, math.ceil(bound - _TOLERANCE))


def fewest_whole(groups: Groups, demand: Longs, seconds: float = 5.0) -> int:
    """Lower bound on the number of whole GPUs for ``demand`` (T,) pods of each type, however they are placed.
    Types that fit nowhere are left out. The search ends after ``seconds`` with the bound reached by then."""
    program = _Program(groups.most, demand)
    if not program.pods.size:
        return 0
    pods, on, of, each = program.pods, program.on, program.of, np.arange(len(groups.whole))
    program.require(np.minimum(demand, groups.most.sum(axis=0)), demand, (of, pods, np.ones(len(pods))))
    taken = on, pods, groups.takes[on, of]
    program.require(-np.inf, groups.beside, taken, (each, each, -np.ones(len(each))))
    program.require(-np.inf, groups.capacity.ravel(), program.taken(groups.sizes))
    most, ones = groups.most[on, of], np.ones(len(each))
    bound = program.least(ones, 0 * ones, groups.whole, most, seconds, whole_pods=True)
    return 0 if bound is None else max(0, math.ceil(bound - _OF_SINGLE_PRECISION))


class _Program:
    """Columns: one for each class, then ``pods`` (X,): one for the pods on a class (``on``) of a requested
    type (``of``) that fits there."""

    def __init__(self, most: Longs, demand: Longs) -> None:
        self._classes = len(most)
        self.on, self.of = np.nonzero((most > 0) & (demand > 0))
        self.pods = self._classes + np.arange(len(self.on))
        self._constraints: list[Any] = []

    def taken(self, sizes: Doubles) -> Entries:
        """The resources that the pods take: a row for each class and resource. ``sizes``: (C, T, R)."""
        resources = sizes.shape[2]
        rows = resources * self.on[:, None] + np.arange(resources)
        return rows.ravel(), np.repeat(self.pods, resources), sizes[self.on, self.of].ravel()

    def require(self, low: _Limits, high: _Limits, *parts: Entries) -> None:
        """Add rows between bounds; at least one of these determines their number."""
        from scipy.optimize import LinearConstraint  # half a second, only for plans and replays
        from scipy.sparse import coo_array

        rows, columns, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        shape = max(np.size(low), np.size(high)), self._classes + len(self.pods)
        self._constraints.append(LinearConstraint(coo_array((values, (rows, columns)), shape), low, high))

    def least(
        self,
        costs: Longs | Doubles,
        low: Longs | Doubles,
        high: Longs,
        most: _Limits,
        seconds: float,
        *,
        whole_pods: bool,
    ) -> float | None:
        """A lower bound on the costs of the classes between ``low`` and ``high``, all of them (C,), with at
        most ``most`` pods (X,); None if that is not possible. Integers are either the pods or the classes."""
        from scipy.optimize import Bounds, milp

        none = np.zeros(len(self.pods))
        found = milp(
            np.concatenate([costs, none]),
            integrality=np.concatenate([np.full(self._classes, not whole_pods), none + whole_pods]),
            bounds=Bounds(np.concatenate([low, none]), np.concatenate([high, none + most])),
            constraints=self._constraints,
            options={"time_limit": seconds},
        )
        if found.status == 2:
            return None
        bound = found.mip_dual_bound
        return 0.0 if bound is None or not np.isfinite(bound) else float(bound)
