"""Dumps of the state: every kind of record, and files that are none."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest

from extender.k8s.admission_objects import (
    LimitRange,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PriorityClass,
    ResourceQuota,
    RuntimeClass,
    StorageClass,
)
from extender.k8s.affinity import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from extender.k8s.node_filter import NodeRequirement
from extender.k8s.node_topology import NodeTopology
from extender.k8s.objects import (
    Job,
    KoordinatorDevice,
    KoordinatorGpu,
    KubernetesObject,
    MigGroup,
    MigLayouts,
    Node,
    Pod,
    PodGroup,
)
from extender.k8s.resource_claims import (
    AllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceSubRequest,
    ResourceClaim,
    ResourceClaimTemplate,
)
from extender.k8s.resource_slices import (
    Amount,
    CapacityRequestPolicy,
    Device,
    DeviceId,
    DeviceSelector,
    DeviceTaintRule,
    NodeScope,
    ResourceSlice,
    parse_version,
)
from extender.source.errors import Unavailable
from extender.source.snapshot import read
from extender.source.state_dump import Header, Learned, end_line, header_line, parse_dump, record_line
from packing.model.numa import NumaNode
from packing.model.request import ModelName, Models, NameFilter, Request, Shares

DEVICE = Device(
    "gpu-0",
    attributes={"gpu": {"mig": True, "index": 1, "name": "1", "version": parse_version("1.2.3-a.1") or ""}},
    capacity={"gpu": {"memory": Amount(Fraction(3, 7))}},
    capacity_by_name={"memory": Amount(Fraction(80))},
    consumes_counters={("set", "a,b"): Fraction(1, 3), ("set", "c"): 5},
    node_scope=NodeScope("n"),
    capacity_policies={"memory": CapacityRequestPolicy(Fraction(1), (Fraction(1), Fraction(2)))},
)
RECORDS: list[KubernetesObject] = [
    Node("n", labels={"$": "1"}, unreadable=("a",), problem="p"),
    Pod("team", "p", "u", priority=5, devices=(("a", "b"),)),
    ResourceSlice("s", devices=(DEVICE,), shared_counters=(("set", {"a,b": 4, "c": Fraction(1, 2)}),)),
    DeviceClass("c", ("device.driver == 'x'",)),
    ResourceClaim("team", "c", allocation=(AllocationResult(DeviceId("a", "b", "c")),), reserved_for=("p",)),
    ResourceClaim("team", "d", allocation=(), available_on=NodeScope("n")),
    ResourceClaim("team", "e", allocation=(), available_on=None),
    DeviceTaintRule("BetaDeviceTaintRule", "t", Taint("k", "", "NoSchedule"), DeviceSelector("d")),
    KoordinatorDevice("n", (KoordinatorGpu(0, "u", True, (("a", "1"),)),)),
    MigLayouts("m", layouts={"all": (MigGroup(None, (), (("1g.10gb", 7),)), MigGroup((1,), (), None))}),
    PriorityClass("forever", toleration=math.inf),
    PodDisruptionBudget("team", "b", allowed=1, disrupted=frozenset({"p"})),
    NodeTopology("n", "restricted", True, (NumaNode((("cpu", 1500),), (("cpu", 4000),)),), "7", "p"),
    RuntimeClass("kata", "", (("cpu", "1"),), (("kata", "yes"),), (Toleration("k", "Exists"),)),
    LimitRange("l", "team", (("cpu", "1"),)),
    PersistentVolume("v", "", (NodeSelectorTerm((NodeSelectorRequirement("zone", "In", ("a",)),)),)),
    PersistentVolume("w", zones=(("topology.kubernetes.io/zone", frozenset({"a"})),)),
    PersistentVolumeClaim("c", "team", "v"),
    PersistentVolumeClaim("d", "team", is_pending=True, storage_class="fast", of_one_pod=True),
    StorageClass("fast", waits=True),
    ResourceQuota("q", "team", (("pods", "5"),), (("pods", "4"),)),
    ResourceClaimTemplate(
        "team", "t", DeviceClaim((DeviceRequest("r", DeviceSubRequest(device_class="c")),))
    ),
    PodGroup("KaiPodGroup", "team", "g", None, whole=True),
    PodGroup("PodGroup", "team", "g", 3),
    Job("team", "j", "u", 5.0, 60.0, "activeDeadlineSeconds"),
]
REQUEST = Request(
    1000,
    1 << 30,
    (("nvidia.com/gpu", 2),),
    Shares(1, 250, memory_mib=100),
    frozenset({"H100"}),
    products=Models((frozenset({ModelName.of("A 100")}),)),
    uuids=NameFilter((frozenset({"GPU-1"}),)),
    separate="require",
    node_set=NodeRequirement((("zone", "a"),)),
)
HEADER = Header(
    "1.2.3", "stowage-0", 1.5, {"spot": "ignore"}, (Learned(REQUEST, 2.5),), {"disruptions": []}, {"g": 2}
)


def text(*records: KubernetesObject, header: Header = HEADER) -> str:
    lines = [header_line(header), *map(record_line, records), end_line(len(records))]
    return b"".join(lines).decode()


def same(one: object, other: object) -> bool:
    """Requests of claims compare by identity."""
    return repr(one) == repr(other)


def test_all_that_was_written_is_read() -> None:
    header, records = parse_dump(text(*RECORDS).encode(), "f")
    assert header == HEADER
    assert all(map(same, records, RECORDS))
    assert len(records) == len(RECORDS)
    assert hash(header.learned[0].request) == hash(REQUEST)


def test_every_kind_is_tried_here() -> None:
    from typing import get_args

    assert {type(one) for one in RECORDS} == set(get_args(KubernetesObject))


LINES = text(*RECORDS).splitlines()
BROKEN = {
    "cut within a line": ("\n".join(LINES)[:-200], "is not JSON, so the dump is incomplete"),
    "cut after a line": ("\n".join(LINES[:-1]), "is incomplete: the dump ended after 25 records"),
    "a line is missing": ("\n".join(LINES[:3] + LINES[4:]), "is incomplete: 24 of 25 records"),
    "another version": (LINES[0].replace('"format":2', '"format":1'), "is a dump of another version"),
    "an unknown kind": (f'{LINES[0]}\n{{"kind":"Secret"}}', "line 2: a record of an unknown kind"),
    "a wrong type": (
        f'{LINES[0]}\n{{"kind":"Pod","record":{{"namespace":3}}}}',
        "line 2: namespace: Input should be a valid string",
    ),
    "a list": (f"{LINES[0]}\n[]", "line 2: is not an object"),
    "no pairs": (
        f'{LINES[0]}\n{{"kind":"ResourceSlice","record":{{"name":"s","devices":[{{"name":"d",'
        '"consumes_counters":3}]}}',
        "line 2: is not a record",
    ),
    "no learned request": (LINES[0].replace('"cpu_milli":1000', '"cpu_milli":-1'), "line 1: "),
    "an endless weight": (LINES[0].replace('"weight":2.5', '"weight":1e308'), "learned.0.weight: "),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_dump_is_refused(tmp_path: Path, case: str) -> None:
    content, problem = BROKEN[case]
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(Unavailable) as error:
        read([tmp_path / "state.json"])
    assert problem in str(error.value)
    assert len(str(error.value)) < 500


def test_a_line_separator_in_a_text_ends_no_line(tmp_path: Path) -> None:
    odd = Node("n", labels={"a": "b\u2028c\x85d"})
    (tmp_path / "state.json").write_text(text(odd))
    assert read([tmp_path / "state.json"]).nodes == {"n": odd}


def test_the_first_line_says_what_it_is() -> None:
    first = json.loads(LINES[0])
    assert (first["kind"], first["replica"], first["at"]) == ("StowageState", "stowage-0", 1.5)
