"""Every fix that explain names works: it is carried out in a copy of the cluster, for every case
(test_cases.py) and for random variations of them, and then the pod fits, with its gang."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from extender.cluster.state import State
from extender.explain.fixes import Change, Fix
from extender.explain.pod import explain, explained
from extender.explain.what_if import changed_like
from extender.explain.words import Word
from extender.inventory.node_state import copy_of
from extender.k8s.objects import Deleted, Owner, Pod, Upserted
from extender.queues.gang_words import GANG, GANG_MIN
from extender.source.snapshot import moment_of

from ..examples import NIGHTLY, some
from .test_one_verdict import FOLDERS, case, changed, changes, waiting

Make = Callable[[], tuple[State, list[Pod]]]
PROMISES = {
    *(Word.EVICT, Word.WAIT_EVICTION, Word.WAIT_ENDING, Word.MOVES, Word.MOVES_BY_EVICTOR, Word.LET_MOVE),
    *(Word.ADD_NODE, Word.ADD_NODES),
}
"""Fixes that a search has tried: carried out by what they say."""


def is_promised(fix: Fix) -> bool:
    """Whether the pod fits after the fix alone."""
    if fix.later:
        return False
    if fix.then and fix.then.word in (Word.THEN, Word.ACCEPTS_FULL, Word.ACCEPTS_PERHAPS):
        return False
    return (
        fix.change is not None or fix.said.word in PROMISES or (fix.pod is not None and fix.then is not None)
    )


def carry_out(state: State, pod: Pod, fix: Fix) -> Pod:
    """The fix on this copy of the cluster; returns the pod after it."""
    values, word = fix.said.values, fix.said.word
    if fix.change is not None:
        return changed_cluster(state, pod, fix.change)
    if fix.pod is not None:
        return fix.pod
    if word in (Word.ADD_NODE, Word.ADD_NODES):
        like = state.nodes[str(values["node"])]
        state.apply([Upserted(copy_of(like, f"new-{number}")) for number in range(int(str(values["count"])))])
    elif word is Word.WAIT_ENDING:
        end(state, str(values["pods"]).split(", "))
    elif word in (Word.EVICT, Word.WAIT_EVICTION):
        end(state, re.split(", | and ", re.sub(r" on [^ ,]+", "", str(values["pods"]))))
    else:
        moves = re.fullmatch(r"\d+ moves? would make room on .*?: (.*); lost work: .*", str(values["moves"]))
        assert moves
        for key, _, target in (move.partition(" to ") for move in moves[1].split(", ")):
            state.apply([Upserted(replace(state.pods[key], node_name=target))])
    return pod


def changed_cluster(state: State, pod: Pod, change: Change) -> Pod:
    new = change.pod or pod
    end(state, [other.key for other in change.gone])
    state.apply([Upserted(node) for node in change.nodes.values()])
    gang = state.gangs.gang_of(pod)
    for member in state.gangs.members(gang.key) if gang and change.pod else ():
        if not member.node_name and member.key != pod.key:
            state.apply([Upserted(changed_like(member, pod, new))])
    return new


def end(state: State, keys: Iterable[str]) -> None:
    for key in keys:
        assert key in state.pods, key
        state.apply([Deleted("Pod", key)])


def check_fixes(make: Make, state: State, pods: list[Pod]) -> int:
    """The number of fixes that were carried out, each on a copy that ``make`` returns."""
    count = 0
    for number, asking in enumerate(pods):
        found, conclusion = explained(state, asking, None, moment_of(state.pods.values()), None)
        for fix in () if found.fits else filter(is_promised, conclusion.fixes):
            copy, same_pods = make()
            then = explain(copy, carry_out(copy, same_pods[number], fix))
            assert then.fits or then.unknown, (asking.key, fix.text, then.verdict)
            count += 1
    return count


def varied(seed: int) -> tuple[State, list[Pod]]:
    rng = random.Random(seed)
    while True:
        folder = rng.choice(FOLDERS)
        state, _ = case(folder)
        if pods := waiting(folder, state)[:2]:
            break
    state.apply(list(changes(rng, state)))
    state.apply([Upserted(pod) for pod in fillers(rng, state, pods)])
    some = [larger(rng, changed(rng, pod)) for pod in pods for _ in range(3)]
    some = [replace(pod, name=f"asked-{n}", uid=f"asked-{n}") for n, pod in enumerate(some)]
    return state, [in_gang(rng, state, pod) if rng.randrange(3) == 0 else pod for pod in some]


def larger(rng: random.Random, pod: Pod) -> Pod:
    """With more of each resource that is counted."""
    by, (first, *others) = rng.choice((1, 1, 2, 4)), pod.spec.containers
    more = tuple((k, str(int(v) * by) if v.isdecimal() and "/" in k else v) for k, v in first.requests)
    limits = tuple((k, v) for k, v in more if k in dict(first.limits))
    return replace(
        pod, spec=replace(pod.spec, containers=(replace(first, requests=more, limits=limits), *others))
    )


def fillers(rng: random.Random, state: State, pods: list[Pod]) -> Iterator[Pod]:
    """Pods like the waiting ones on most nodes."""
    for pod, name in itertools.product(pods[:1], sorted(state.nodes)):
        owner = rng.choice((None, Owner("Job", "filler"), Owner("DaemonSet", "filler")))
        rules = replace(pod.scheduling_constraints, owner_kind=owner.kind if owner else "")
        for number in range(rng.randrange(4)):
            own = f"filler-{name}-{number}"
            there = replace(pod, name=own, uid=own, node_name=name, phase="Running", owner=owner, claims=())
            yield replace(there, labels={}, annotations={}, scheduling_constraints=rules)


def in_gang(rng: random.Random, state: State, pod: Pod) -> Pod:
    """The pod as a member of a gang whose other members wait, too."""
    count, of = rng.randint(2, 4), {GANG: f"gang-{pod.name}"}
    member = replace(pod, labels={**pod.labels, **of, GANG_MIN: str(count)})
    others = (replace(member, name=f"{pod.name}-{n}", uid=f"{pod.uid}-{n}") for n in range(1, count))
    state.apply(list(map(Upserted, others)))
    return member


BLOCKS = 4
SEEDS = some(range(4600), 80)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_of_variations(block: int) -> None:
    """In the nightly run at least 2,000 fixes."""
    seeds = SEEDS[block::BLOCKS]
    count = sum(check_fixes(lambda seed=seed: varied(seed), *varied(seed)) for seed in seeds)
    assert count >= len(seeds) * (0.45 if NIGHTLY else 0.1)


def test_of_a_copy_that_gets_another_layout() -> None:
    """A new node like this one waits for the MIG layout of its label, which this one never got."""
    check_fixes(lambda: varied(20343), *varied(20343))
