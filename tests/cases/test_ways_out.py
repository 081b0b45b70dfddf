"""What explain names as a way out works: each is taken, on every case and on random variations, and then the
pod fits."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from extender.cluster.state import State
from extender.explain.candidates import uncordoned
from extender.explain.pod import explain
from extender.explain.room import held_without_gpus
from extender.inventory.node_state import copy_of
from extender.k8s.affinity import Toleration
from extender.k8s.objects import Deleted, Pod, Upserted
from extender.source.snapshot import moment_of

from ..examples import examples
from .test_one_verdict import FOLDERS, case, changed, changes, waiting

Way = Callable[[State, Pod, re.Match[str]], Pod]
PROMISE = r": \d+ nodes? would accept (?:it|the whole gang)(?:;.*)?"


def ended(state: State, pod: Pod, said: re.Match[str]) -> Pod:
    state.apply([Deleted("Pod", key) for key in said[1].split(", ")])
    return pod


def uncordon(state: State, pod: Pod, said: re.Match[str]) -> Pod:
    state.apply([Upserted(uncordoned(state.nodes[said[1]]))])
    return pod


def tolerate(_: State, pod: Pod, said: re.Match[str]) -> Pod:
    more = (Toleration(**written) for written in yaml.safe_load(said[1]))
    rules = pod.scheduling_constraints
    return replace(pod, scheduling_constraints=replace(rules, tolerations=(*rules.tolerations, *more)))


def select(_: State, pod: Pod, said: re.Match[str]) -> Pod:
    selector = yaml.safe_load(said[1]) if said[1].startswith("{") else {}
    return replace(pod, spec=replace(pod.spec, node_selector=tuple(sorted(selector.items()))))


def one_more(state: State, pod: Pod, said: re.Match[str]) -> Pod:
    state.apply([Upserted(copy_of(state.nodes[said[1]], "one-more"))])
    return pod


def moved_off(state: State, pod: Pod, said: re.Match[str]) -> Pod:
    state.apply([Deleted("Pod", other.key) for other, _ in held_without_gpus(state, said[1])])
    return pod


def moved(state: State, pod: Pod, said: re.Match[str]) -> Pod:
    for key, _, target in (move.partition(" to ") for move in said[1].split(", ")):
        state.apply([Upserted(replace(state.pods[key], node_name=target))])
    return pod


WAYS: dict[str, Way] = {
    rf"kubectl uncordon (\S+){PROMISE}": uncordon,
    rf"write tolerations: (\[.*?\])(?: \(the API server.*?\))?{PROMISE}": tolerate,
    rf"write nodeSelector: (\{{.*?\}}){PROMISE}": select,
    rf"leave out (spec.nodeSelector) \(.*?\){PROMISE}": select,
    r"wait until (\S+) on \S+ ends: .*": ended,
    r"(?:evict|wait: (?:kube-scheduler|the evictor) evicts) (\S+(?:, \S+)*) on \S+(?: for it)?": ended,
    r"move pods without GPUs off (\S+), .*": moved_off,
    r"\d+ moves? would make room on .*?: (\S+ to [^ ,;]+(?:, \S+ to [^ ,;]+)*); .*": moved,
    r"add a node like (\S+): .*": one_more,
}


def check(make: Callable[[], tuple[State, list[Pod]]]) -> None:
    for number, asking in enumerate(make()[1]):
        state, _ = make()
        found = explain(state, asking, now=moment_of(state.pods.values()))
        for way in () if found.fits else found.verdict.ways:
            takes = [(take, said) for words, take in WAYS.items() if (said := re.fullmatch(words, way))]
            for take, said in takes:
                state, pods = make()
                then = explain(state, take(state, pods[number], said))
                assert then.fits or then.unknown, (asking.key, way, then.verdict)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_of_a_case(folder: Path) -> None:
    def make() -> tuple[State, list[Pod]]:
        state, _ = case(folder)
        return state, waiting(folder, state)

    check(make)


@pytest.mark.parametrize("seed", range(examples(300, least=40)))
def test_of_a_variation(seed: int) -> None:
    def make() -> tuple[State, list[Pod]]:
        rng = random.Random(seed)
        folder = rng.choice(FOLDERS)
        state, _ = case(folder)
        state.apply(list(changes(rng, state)))
        return state, [changed(rng, pod) for pod in waiting(folder, state)]

    check(make)
