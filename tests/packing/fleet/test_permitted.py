"""One mask decides which GPUs a request may have: a constraint that is planted there, and that no other code
knows, holds for every choice and every set of victims."""

from __future__ import annotations

import random

import numpy as np
import pytest

import packing.fleet.feasibility
import packing.fleet.permitted
from packing.fleet.feasibility import fits_when_empty, reasons_for
from packing.fleet.permitted import permitted_gpus
from packing.fleet.placement import freest, freest_gpus, placed_shares, tightest
from packing.model.reasons import Reason
from packing.policies.registry import POLICIES
from tests.examples import some
from tests.packing.victims.random_nodes import random_case, search_among

SEEDS = 300


@pytest.fixture(params=some(range(4), 2))
def planted(request, monkeypatch):
    """The GPUs that a secret constraint leaves."""
    allowed = frozenset(random.Random(request.param).sample(range(3), 2))

    def constrained(fleet, asked, rows=packing.fleet.permitted.EVERY_ROW, arrays=None):
        mask = permitted_gpus(fleet, asked, rows, arrays)
        mask = np.ones_like(fleet.arrays.identified[:, rows]) if mask is None else mask.copy()
        mask[[gpu for gpu in range(len(mask)) if gpu not in allowed]] = 0
        return mask

    for module in (packing.fleet.permitted, packing.fleet.feasibility):
        monkeypatch.setattr(module, "permitted_gpus", constrained)
    return allowed


def fits(case) -> bool:
    return bool(reasons_for(case.fleet, case.request)[0] == Reason.FITS)


def test_a_planted_constraint_holds_for_every_choice_and_every_set_of_victims(planted):
    placed, evicted = 0, 0
    for seed in range(SEEDS):
        case = random_case(seed)
        part = placed_shares(case.fleet, 0, case.request)
        if part is None:
            continue
        if fits_when_empty(case.fleet, case.request)[0]:
            assert part.count <= len(planted)
        victims = search_among(case.fleet, case.request, case.victims)
        gone = [held for v in (victims.victims if victims else ()) for held in case.victims[v].held]
        with case.fleet.without(gone):
            assert fits(case) or victims is None
            if not fits(case):
                continue
            placed, evicted = placed + 1, evicted + bool(gone)
            for policy in (make() for make in POLICIES.values()):
                chosen = policy.choose(case.fleet, case.request, 0)
                assert len(chosen) == part.count, policy.name
                assert planted.issuperset(chosen), policy.name
            for choose in (tightest, freest):
                assert planted.issuperset(choose(case.fleet, case.request, 0))
            assert planted.issuperset(freest_gpus(case.fleet, 0, case.request))
    assert placed > 30
    assert evicted > 10
