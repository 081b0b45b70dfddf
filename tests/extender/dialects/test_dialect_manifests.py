"""Manifests from the documentation of each system: what they request, where they fit, what they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Deleted, Node, Pod
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import CLAIMED_DEVICES
from extender.verbs.bind import BindingRefused, assign
from tests.expected import check_words
from tests.extender.builders import make_state, why

FILE = Path(__file__).parents[1] / "data/dialects.yaml"
CASES = yaml.load(FILE.read_text(), yaml.CSafeLoader)
NODES: dict[str, dict] = CASES["nodes"]
PODS: dict[str, dict] = CASES["pods"]
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def cases(key: str) -> list[str]:
    return [name for name, case in PODS.items() if key in case]


def node(name: str) -> Node:
    manifest = NODES[name] | {"metadata": {"name": name, **NODES[name].get("metadata", {})}}
    return NodeManifest.from_value(manifest).record()


def pod(name: str, on: str = "") -> Pod:
    manifest = PODS[name]["pod"]
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", **manifest.get("metadata", {})}
    spec = manifest["spec"] | ({"nodeName": on} if on else {})
    return PodManifest.from_value(manifest | {"metadata": metadata, "spec": spec}).record()


def test_every_node_can_be_read():
    state = make_state(*map(node, NODES))
    assert state.problems.keys() == {"hami-left-over"}  # it may be a leftover register, or not


@pytest.mark.parametrize("name", cases("asks"))
def test_what_a_pod_asks_for(name):
    request, asks = request_of(pod(name)), PODS[name]["asks"]
    assert dict(request.devices) == asks.get("devices", {})
    part = request.shares
    found = (
        [part.count, part.compute_milli, part.memory_mib, part.memory_milli, part.resource] if part else None
    )
    assert found == asks.get("shares")


@pytest.mark.parametrize(
    ("name", "on"), [(name, on) for name in cases("where") for on in PODS[name]["where"]]
)
def test_where_it_fits(name, on):
    state, asking = make_state(node(on), binds=on.startswith("stowage")), pod(name)
    check_words(FILE, PODS[name]["where"][on], why(state, asking, on).text)


def used(state, on: str) -> list[list[int]]:
    fleet, row = state.fleet, state.fleet.rows[on]
    compute = fleet.arrays.compute_capacity[:, row] - fleet.arrays.compute[:, row]
    memory = fleet.arrays.memory_capacity[:, row] - fleet.arrays.memory[:, row]
    return [[g, int(compute[g]), int(memory[g])] for g in np.flatnonzero(compute + memory)]


@pytest.mark.parametrize(
    ("name", "on"), [(name, on) for name in cases("holds") for on in PODS[name]["holds"]]
)
def test_what_it_holds_when_it_runs(name, on):
    running, problem = pod(name, on), PODS[name].get("problem")
    for events in ((node(on), running), (running, node(on))):
        state = make_state(*events)
        assert used(state, on) == PODS[name]["holds"][on]
        assert state.problems.keys() == ({running.key} if problem else set())
        assert problem is None or problem in state.problems[running.key]
        assert state.allocations.contradictions == bool(problem)


@pytest.mark.parametrize(
    ("name", "on", "annotation", "text"),
    [
        ("koordinator-running", "koordinator", DEVICE_ALLOCATED, "[" * 100_000),
        ("koordinator-running", "koordinator", DEVICE_ALLOCATED, '{"gpu": [{"minor": 1e999}]}'),
        ("hami-running", "hami", "hami.io/vgpu-devices-allocated", "9" * 5000 + ",NVIDIA,1,1:;"),
        ("hami-mig-running", "hami-mig-on-demand", "hami.io/vgpu-mig-allocations", "[" * 100_000),
        ("gpushare-running", "gpushare", "ALIYUN_COM_GPU_MEM_POD", "9" * 5000),
        ("kai-fraction", "stowage", "gpu-fraction", "1e999999999"),
    ],
)
def test_a_hostile_annotation_is_a_problem_of_its_pod_alone(name, on, annotation, text):
    running = pod(name, on)
    given = {**running.annotations, "stowage.dev/gpu-indices": "0"}  # else it has no GPU on node "stowage"
    forged = replace(running, annotations={**given, annotation: text})
    state = make_state(node(on), forged)
    assert running.key in state.problems
    assert used(state, on)
    state.apply([Deleted("Pod", running.key)])
    assert not used(state, on)


def test_the_books_are_exact_again_after_a_forged_pod_is_gone():
    running = pod("hami-running", "hami")
    devices = "GPU-aaaa,NVIDIA,31111,33:" * CLAIMED_DEVICES + ";"
    forged = {**running.annotations, "hami.io/vgpu-devices-allocated": devices}
    state = make_state(node("hami"), replace(running, annotations=forged))
    assert state.overcommitted == {"hami"}
    state.apply([Deleted("Pod", running.key)])
    assert not state.overcommitted
    assert not used(state, "hami")


TIMES = {"hami.io/bind-time", "hami.io/vgpu-time", "ALIYUN_COM_GPU_MEM_ASSUME_TIME"}


@pytest.mark.parametrize(
    ("name", "on"), [(name, on) for name in cases("writes") for on in PODS[name]["writes"]]
)
def test_what_bind_writes(name, on):
    state, asking, expected = make_state(node(on), binds=True), pod(name), PODS[name]["writes"][on]
    if expected == "refused":
        with pytest.raises((BindingRefused, RequestError)):
            assign(state, asking, on)
    else:
        written = {key: text for key, text in assign(state, asking, on).items() if key not in TIMES}
        assert written.items() >= expected.items()
        assert bool(written) == bool(expected)


@pytest.mark.parametrize("name", cases("error"))
def test_an_impossible_request_is_an_error_that_says_why(name):
    with pytest.raises(RequestError) as refused:
        request_of(pod(name))
    check_words(FILE, PODS[name]["error"], str(refused.value))
