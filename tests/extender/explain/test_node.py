"""A node as the debug endpoint shows it: what its devices are, who has them, and how that is known."""

from __future__ import annotations

from typing import Any

from extender.explain.node import NodeView, view_node
from extender.k8s.objects import Upserted
from tests.extender.builders import GPU, make_node, make_pod, make_state
from tests.extender.dra.nvidia import NODE, counter_set, dynamic, spec
from tests.extender.dra.records import parse_slice


def seen(*objects: Any, node: str = "n") -> NodeView:
    view = view_node(make_state(*objects), node, 0.0)
    assert view is not None
    return view


def test_where_the_devices_of_a_pod_are_known_from() -> None:
    node = make_node("n", 8)
    pods = make_pod("asks", 1, node_name="n"), make_pod("told", 1, node_name="n", devices=((GPU, "GPU-1"),))
    sources = {holder.pod: holder.source for holder in seen(node, *pods).holders}
    assert sources == {"default/asks": "request", "default/told": "kubelet"}


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
