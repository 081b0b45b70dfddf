"""A node as the debug endpoint shows it: what its devices are, who has them, and how that is known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.cluster.census import CensusTaker
from extender.explain.node import NodeView, view_node
from extender.explain.overview import node_lines
from extender.k8s.objects import Upserted
from extender.source.workloads import parse_pod
from tests.extender.builders import GPU, H100, make_node, make_pod, make_state
from tests.extender.dra.nvidia import NODE, counter_set, dynamic, spec
from tests.extender.dra.records import parse_slice


def seen(*objects: Any, node: str = "n") -> NodeView:
    view = view_node(make_state(*objects), node, 0.0)
    assert view is not None
    return view


def test_the_kinds_of_devices() -> None:
    (whole,) = seen(make_node("n", 8)).pools
    assert (whole.kind, whole.counted, whole.each) == ("GPUs", True, ())
    (mig,) = seen(make_node("n", 0, **{"nvidia.com/mig-1g.10gb": "7"})).pools
    assert mig.kind == "MIG instances"
    sliced = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"}
    (replicas,) = seen(make_node("n", 8, labels=sliced)).pools
    assert (replicas.kind, replicas.total) == ("replicas", 8)


def test_free_host_memory_is_what_pods_leave_in_mib() -> None:
    node, pods = make_node("n", memory="100Gi"), [make_pod(f"p{n}", node_name="n") for n in range(3)]
    assert seen(node, *pods).free_memory_mib == 97 << 10
    state = make_state(node, *pods)
    census = CensusTaker(state)
    asyncio.run(census.take())
    (line,) = node_lines(state, census, ["n"])
    assert line.free_host_memory_mib == 97 << 10


def test_where_the_devices_of_a_pod_are_known_from() -> None:
    node = make_node("n", 8)
    pods = make_pod("asks", 1, node_name="n"), make_pod("told", 1, node_name="n", devices=((GPU, "GPU-1"),))
    sources = {holder.pod: holder.source for holder in seen(node, *pods).holders}
    assert sources == {"default/asks": "request", "default/told": "kubelet"}


SHARED = H100 | {"stowage.dev/gpu-sharing": "true", "nvidia.com/gpu.count": "2"}
SHARE = """
kind: Pod
metadata:
  name: part
  annotations: {stowage.dev/gpu-compute: 30%, stowage.dev/gpu-memory: 8Gi, stowage.dev/gpu-indices: "1"}
spec: {nodeName: n, containers: [{name: main}]}
"""


def test_parts_of_gpus() -> None:
    (holder,) = seen(make_node("n", 2, labels=SHARED), parse_pod(SHARE, "pod")).holders
    (part,) = holder.parts
    assert (part.gpu, part.compute_milli, part.memory_mib, part.slices) == (1, 300, 8192, ())
    assert (holder.source, holder.gpus) == ("annotations", (1,))


def test_devices_of_dynamic_resource_allocation_with_their_slices() -> None:
    state = make_state(make_node(NODE, 0))
    devices = dynamic()
    state.apply([Upserted(parse_slice("s", spec(*devices, sharedCounters=[counter_set()])))])
    view = view_node(state, NODE, 0.0)
    assert view is not None
    by_name = {device.device.rpartition("/")[2]: device for device in view.devices}
    assert len(by_name) == len(devices)
    part = by_name["gpu-0-mig-1g5gb-19-3"]
    assert (part.what, part.gpu, part.slices) == ("1g.5gb", "GPU-0", (3,))
    assert by_name["gpu-0"].slices == tuple(range(8))


@pytest.mark.parametrize("counter", ["memory-slice-", "memory-slice-x", "memory-slice-12345", "memory", "9"])
def test_other_counters_are_no_slices(counter: str) -> None:
    state = make_state(make_node(NODE, 0))
    device = dynamic()[0] | {
        "consumesCounters": [{"counterSet": "gpu-0-counter-set", "counters": {counter: {"value": "1"}}}]
    }
    shared = {"name": "gpu-0-counter-set", "counters": {counter: {"value": "1"}}}
    state.apply([Upserted(parse_slice("s", spec(device, sharedCounters=[shared])))])
    view = view_node(state, NODE, 0.0)
    assert view is not None
    assert [one.slices for one in view.devices] == [()]
