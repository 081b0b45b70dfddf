"""Annotations of any length cost no more than a few devices do, and texts about them are short.

Work is counted in function calls, which does not depend on the machine.
"""

from __future__ import annotations

import json
import logging
import tracemalloc
from dataclasses import replace
from functools import cache

import pytest

from extender.dialects.dialect import parse_indices, parse_number, parse_positive
from extender.dialects.pod_request import claims_of, request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Container, PodSpec, Upserted
from extender.untrusted.limits import CLAIMED_DEVICES, LISTED_NAMES, POD_ANNOTATION, PROBLEM
from tests.extender.builders import make_pod, make_state
from tests.extender.counting import calls
from tests.extender.dialects.test_dialect_manifests import node, pod, used

LONG = 250 << 10
MIG = {"containerIndex": 0, "deviceIndex": 0, "gpuUUID": "GPU-z", "placement": {"start": 0, "size": 1}}
MINOR = {"minor": 7, "resources": {"koordinator.sh/gpu-core": "1"}}
SAID = {
    "hami": ("hami-running", "hami.io/vgpu-devices-allocated"),
    "hami-mig-on-demand": ("hami-mig-running", "hami.io/vgpu-mig-allocations"),
    "volcano": ("volcano-running", "volcano.sh/vgpu-ids-new"),
    "vgpu-manager": ("vgpu-manager-running", "nvidia.com/pre-allocated"),
    "koordinator": ("koordinator-running", "scheduling.koordinator.sh/device-allocated"),
    "gpushare": ("gpushare-running", "ALIYUN_COM_GPU_MEM_IDX"),
    "stowage": ("stowage-running", "stowage.dev/gpu-indices"),
}
DEVICE = {  # one more device of each, and what joins them
    "hami": ("GPU-z{},NVIDIA,1,1", ":"),
    "hami-mig-on-demand": (json.dumps(MIG).replace('Index": 0', 'Index": {}', 1), ","),
    "volcano": ("GPU-z{},NVIDIA,1,1", ":"),
    "vgpu-manager": ("0_GPU-z{}_1_1", ","),
    "koordinator": (json.dumps(MINOR).replace("7", "{}", 1), ","),
    "gpushare": ("{}", ","),
    "stowage": ("{}", ","),
}
FRAME = {"hami-mig-on-demand": "[{}]", "vgpu-manager": "default[{}]", "koordinator": '{{"gpu":[{}]}}'}


def many(on: str, count: int) -> str:
    device, joint = DEVICE[on]
    named = (device.replace("{}", str(1000 + index)) for index in range(count))
    return FRAME.get(on, "{}").format(joint.join(named))


@cache
def long(on: str) -> dict[str, str]:
    """Hostile texts of 250 KiB for the annotation that names the GPUs on such a node."""
    devices = LONG // len(many(on, 1))
    return {
        "devices": many(on, devices),
        "as many as are read": many(on, CLAIMED_DEVICES),
        "digits": "9" * LONG,
        "separators": ";" * LONG,
        "commas": "," * LONG,
        "colons": ":" * LONG,
        "brackets": "[" * LONG,
        "a name": many(on, 1).replace("1000", "1" * LONG),
        "zeros": many(on, 1).replace("1,1", f"1,{'0' * LONG}1").replace("_1", f"_{'0' * LONG}1"),
    }


def applied(on: str, annotation: str | None) -> int:
    name, key = SAID[on]
    running = pod(name, on)
    if annotation is not None:
        running = replace(running, annotations={**running.annotations, key: annotation})
    state = make_state(node(on))
    return calls(lambda: state.apply([Upserted(running)]))


@pytest.mark.parametrize("on", SAID)
@pytest.mark.parametrize("shape", long("hami"))
def test_no_annotation_costs_much_more_than_a_normal_one(on, shape):
    for _ in range(2):  # the first time fills caches
        normal, hostile = applied(on, None), applied(on, long(on)[shape])
    assert hostile <= 20 * normal


@pytest.mark.parametrize("on", SAID)
@pytest.mark.parametrize("shape", long("hami"))
def test_what_is_said_about_it_is_short(on, shape, caplog):
    name, key = SAID[on]
    running = pod(name, on)
    running = replace(running, annotations={**running.annotations, key: long(on)[shape]})
    with caplog.at_level(logging.WARNING):
        state = make_state(node(on), running)
    assert len(state.problems[running.key]) <= PROBLEM
    assert all(len(record.getMessage()) <= PROBLEM + 100 for record in caplog.records)
    assert used(state, on)


@pytest.mark.parametrize("on", ["hami", "volcano", "vgpu-manager", "stowage", "gpushare"])
def test_devices_are_counted_before_any_is_read(on):
    name, key = SAID[on]
    running = pod(name, on)
    running = replace(running, annotations={**running.annotations, key: many(on, 20_000)})
    tracemalloc.start()
    try:
        claims = claims_of(running)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert claims is not None
    assert claims.devices == ()
    assert "more than" in claims.problem
    assert peak < 64 << 10


@pytest.mark.parametrize("on", ["hami-mig-on-demand", "koordinator"])
def test_long_json_is_not_parsed(on):
    name, key = SAID[on]
    running = pod(name, on)
    for text in (many(on, 20_000), many(on, CLAIMED_DEVICES + 1), " " * POD_ANNOTATION + many(on, 1)):
        claims = claims_of(replace(running, annotations={**running.annotations, key: text}))
        assert claims is not None
        assert "cannot be read" in claims.problem


@pytest.mark.parametrize("text", ["²", "٣", "1_0", " 1", "+1", "-1", "1.0", "", "9" * 10, "9" * LONG, "x"])
def test_a_number_has_a_few_ascii_digits(text):
    for read in (parse_number, parse_indices):
        with pytest.raises(ValueError, match="not a whole number") as error:
            read(text)
        assert len(str(error.value)) < PROBLEM
    with pytest.raises(RequestError, match="not a whole number of at least 1"):
        parse_positive("a", text)
    assert (parse_number("0"), parse_number("007"), parse_indices("3,01")) == (0, 7, ["3", "1"])


@pytest.mark.parametrize("label", ["²", "٣", "9" * 63, "-1", "0"])
def test_a_label_that_is_no_number_is_refused(label):
    asking = replace(pod("gpushare-running"), labels={"aliyun.com/gpu-count": label})
    with pytest.raises(RequestError):
        request_of(asking)


@pytest.mark.parametrize(
    ("key", "requests"),
    [
        ("gpu-fraction", ()),
        ("gpu-memory", ()),
        ("gpu-fraction-num-devices", ()),
        ("stowage.dev/gpu-compute", ()),
        ("stowage.dev/gpu-memory", ()),
        ("stowage.dev/gpus", ()),
        ("nvidia.com/vgpu-mode", (("nvidia.com/gpu", "1"),)),
        ("volcano.sh/vgpu-mode", (("volcano.sh/vgpu-number", "1"),)),
    ],
)
@pytest.mark.parametrize("text", ["9" * LONG, "x" * LONG, "0." + "1" * LONG + "%"])
def test_an_error_quotes_only_a_little(key, requests, text):
    asking = make_pod("a", spec=PodSpec((Container("a", requests),)), annotations={key: text})
    if key == "gpu-fraction-num-devices":
        asking = replace(asking, annotations={key: text, "gpu-fraction": "0.5"})
    with pytest.raises(RequestError) as error:
        request_of(asking)
    assert len(str(error.value)) <= PROBLEM


def test_requests_with_long_annotations_are_not_kept():
    def ask(number: int) -> None:
        names = ",".join(f"{number:06}-{n}" + "-x" * 50 for n in range(LISTED_NAMES))
        said = {"nvidia.com/use-gputype": names}
        request_of(make_pod("a", 1, annotations=said))

    ask(0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 100):  # 0.7 MB of text
            ask(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1 << 20
