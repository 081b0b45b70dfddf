"""For every waiting pod of every case (test_cases.py), and of random variations of them, filter, explain,
top, the page and plan agree on where it fits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from extender.cluster.permitted_rows import PermittedRows
from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.dra.pod_claims import class_resources
from extender.explain.candidates import candidates_of
from extender.explain.decision_log import Decisions
from extender.explain.inspector import Inspector
from extender.explain.overview import waiting_line
from extender.explain.pod import explain, explain_each
from extender.k8s.affinity import Taint
from extender.k8s.objects import Deleted, Event, Node, Pod, Upserted
from extender.settings import Settings
from extender.source.workloads import parse_templates
from extender.trial.cluster_pods import trial_of
from extender.trial.trial import FROM_SLICES, Item, Trial
from extender.untrusted.visible import many
from packing.model.reasons import Reason

from ..examples import some
from .answers import cluster, filtered

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/cluster.json"))
CPU_AND_MEMORY = {Reason.NO_FREE_CPU.text, Reason.NO_FREE_MEMORY.text}
OF_WORDS = {
    reason.text
    for reason in (Reason.WRONG_MODEL, Reason.OLD_DRIVER, Reason.PART_OF_A_GPU, Reason.SMALL_DEVICES)
}
"""Reasons from annotations about devices, which kube-scheduler does not read."""
ONLY_WHILE_PODS_START = {Reason.NO_ASSIGNER, Reason.MISALIGNED, Reason.PLUGIN_BUSY}
PLAN_KNOWS_NOTHING_OF = {*ONLY_WHILE_PODS_START, Reason.GANG_DOES_NOT_FIT}


@pytest.mark.parametrize("seed", some(range(600), 30))
def test_of_a_variation(seed: int):
    rng = random.Random(seed)
    folder = rng.choice(FOLDERS)
    state, settings = case(folder)
    state.apply(list(changes(rng, state)))
    check_agreement(state, settings, [changed(rng, pod) for pod in waiting(folder, state)])


def check_agreement(state: State, settings: Settings, pods: list[Pod]):
    """Changes the state."""
    for pod in pods:
        check(state, settings, pod)
    agrees_with_plan(state, settings, pods)
    plan_starts_what_fits(state, pods)


def case(folder: Path) -> tuple[State, Settings]:
    path = folder / "right.yaml"
    given = yaml.load(path.read_text(), yaml.CSafeLoader) if path.exists() else {}
    settings = Settings.model_validate({"shortlist": 0} | given.get("settings", {}))
    return cluster(folder / "cluster.json", settings), settings


def waiting(folder: Path, state: State) -> list[Pod]:
    """Without gates, and as they are once they are created."""
    pods = [state.pods[key] for key in state.pods.waiting]
    if (folder / "pod.json").exists():
        written = parse_templates((folder / "pod.json").read_text(), "pod.json")[0].pod
        pods += [state.admission.as_created(written)[0]] if written.key not in state.pods else []
    return [replace(pod, gates=()) for pod in pods]


def changes(rng: random.Random, state: State) -> Iterator[Event]:
    """A few nodes change, and some pods end."""
    for node in rng.sample(sorted(state.nodes.values(), key=lambda one: one.name), min(3, len(state.nodes))):
        yield Upserted(rng.choice((cordoned, tainted, without_cpu, fewer_gpus, in_trouble))(node))
    bound = sorted(pod.key for pod in state.pods.values() if pod.node_name)
    for key in rng.sample(bound, len(bound) // 2):
        yield Deleted("Pod", key)


def cordoned(node: Node) -> Node:
    return replace(node, unschedulable=True)


def tainted(node: Node) -> Node:
    return replace(node, taints=(*node.taints, Taint("team", "a", "NoSchedule")))


def without_cpu(node: Node) -> Node:
    return replace(node, allocatable={**node.allocatable, "cpu": "100m"})


def fewer_gpus(node: Node) -> Node:
    one = {name: "1" for name, count in node.allocatable.items() if "gpu" in name and count != "0"}
    return replace(node, allocatable={**node.allocatable, **one})


def in_trouble(node: Node) -> Node:
    """Its MIG manager has failed."""
    product = f"{node.labels.get('nvidia.com/gpu.product', 'NVIDIA-A100-SXM4-80GB')}-MIG-INVALID"
    return replace(node, labels={**node.labels, "nvidia.com/gpu.product": product})


def changed(rng: random.Random, pod: Pod) -> Pod:
    """As it is, or without any GPU, with a host name, or with more CPUs."""
    match rng.randrange(4):
        case 0:
            old = pod.spec
            few = (replace(one, requests=plain(one.requests), limits=()) for one in old.containers)
            return replace(pod, spec=replace(old, containers=tuple(few), claims=()), annotations={})
        case 1:
            return replace(pod, spec=replace(pod.spec, node_selector=(("kubernetes.io/hostname", "a"),)))
        case 2:
            first, *others = pod.spec.containers
            more = replace(first, requests=tuple(sorted({**dict(first.requests), "cpu": "3"}.items())))
            return replace(pod, spec=replace(pod.spec, containers=(more, *others)))
    return pod


def plain(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in pairs if pair[0] in ("cpu", "memory"))


def check(state: State, settings: Settings, pod: Pod):
    found = explain(state, pod)
    result = filtered(state, pod, settings)
    if found.error:
        assert result.error
        return
    if never := state.gangs.never_tried(pod):  # kube-scheduler asks about none of its nodes
        assert found.held == never
        assert result.error == never or not (found.fits and request_of(pod).wants_gpu)
        assert waiting_line(state, pod).why.endswith(never)
        return
    fits = set() if result.error else set(result.names)
    answers = explain_each(state, pod, list(state.nodes))
    each = {one.node for one in answers if one.fits}
    if not request_of(pod).wants_gpu:  # kube-scheduler asks for nodes with enough of these
        fits -= {one.node for one in answers if one.reason in CPU_AND_MEMORY}
    # kube-scheduler asks for nodes of Koordinator that advertise all that the pod requests of it
    fits -= {one.node for one in answers if one.reason.startswith("node does not offer koordinator.sh/")}
    if wants_slices(state, pod):  # filter leaves their devices to kube-scheduler
        assert each <= fits
        assert not fits & {one.node for one in answers if one.reason in OF_WORDS}, (pod, answers)
    else:
        assert each == fits, (pod, answers)
    assert found.fits == len(each), (found, each)
    others = sum(found.unknown.values()) + sum(found.passed_over.values())
    assert found.fits + sum(refusal.nodes for refusal in found.refusals) + others == len(state.nodes)
    line = waiting_line(state, pod)
    says_so = line.why.startswith((f"fits on {many(found.fits, 'node')}", "waiting for room on "))
    never = found.verdict.why.startswith("There is no") or "does not exist" in found.verdict.why
    assert bool(found.fits) == says_so or never or pod.nominated_node, line
    assert waiting_line(state, pod, asyncio.run(candidates_of(state, pod))) == line
    if state.pods.get(pod.key) == pod:
        report = asyncio.run(Inspector(state, Decisions(1), settings).pod(pod.key))
        assert report is not None
        assert report.now is not None
        assert (report.now.fits, report.now.refusals) == (found.fits, found.refusals)


def wants_slices(state: State, pod: Pod) -> bool:
    named = state.devices.extended_resources & {name for name, _ in request_of(pod).devices}
    return bool(pod.spec.claims or class_resources(pod.spec) or named)


def agrees_with_plan(state: State, settings: Settings, pods: list[Pod]):
    """Plan fills no node that filter refuses, but for what only counts while pods start."""
    before = {pod.uid: filtered(state, pod, settings) for pod in pods}
    permitted = PermittedRows(state)
    trial = Trial(state, permitted.open)
    for pod in pods:
        try:
            request = state.request_of(pod)
        except RequestError:
            continue
        if pod.spec.claims or state.gangs.gang_of(pod) or before[pod.uid].error:
            continue
        rows = permitted.rows_that_accept(pod)
        codes, _ = trial.evaluate(Item(pod.key, request, rows, pod))
        named = enumerate(state.fleet.specs)
        fits = {spec.name for row, spec in named if spec and rows[row] and not codes[row]}
        refused = {
            name
            for reason, names in (before[pod.uid].failed | before[pod.uid].unresolvable).items()
            if reason not in {one.text for one in PLAN_KNOWS_NOTHING_OF}
            for name in names
        }
        assert not fits & refused, (fits & refused, before[pod.uid])


def plan_starts_what_fits(state: State, pods: list[Pod]):
    """Plan starts a pod, or its gang, if no other pod waits, just where explain says that it fits."""
    state.apply([Upserted(pod) for pod in pods])
    found = {pod.key: explain(state, state.pods[pod.key]) for pod in pods}
    trial = trial_of(state, real_moves=True)
    start, waiting = trial.savepoint(), trial.waiting
    for item in waiting:
        said = found.get(item.key)
        if said is None or {one.reason for one in said.refusals} & {
            one.text for one in ONLY_WHILE_PODS_START
        }:
            continue
        gang = state.gangs.gang_of(item.pod)
        trial.waiting = [
            one for one in waiting if one is item or (gang and state.gangs.gang_of(one.pod) == gang)
        ]
        trial.waiting.sort(key=lambda one: one is not item)
        next(trial.starting())
        is_left = trial.why_not(item) == FROM_SLICES  # plan allocates no devices
        assert (item.key in trial.held) == (bool(said.fits) and not is_left), (
            said.verdict,
            trial.why_not(item),
        )
        trial.undo_to(start)
