"""A pod with scheduling gates is no waiting pod: kube-scheduler does not try it."""

from __future__ import annotations

import pytest

from extender.explain.pod import explain
from extender.k8s.pod_manifest import PodManifest
from extender.untrusted.limits import SCHEDULING_GATES
from tests.extender.builders import make_node, make_pod, make_state

ADMISSION, TOPOLOGY = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"


def test_so_many_gates_are_kept() -> None:
    gates = [{"name": f"example.com/{number}"} for number in range(10 * SCHEDULING_GATES)]
    pod = PodManifest.from_value({"spec": {"schedulingGates": gates}}).record()
    assert len(pod.gates) == SCHEDULING_GATES


@pytest.mark.parametrize(("nodes", "fits"), [("n", 0), ("nm", 2)])
def test_a_gated_gang_is_answered_as_if_it_were_released(nodes: str, fits: int) -> None:
    labels = {"stowage.dev/gang": "g", "stowage.dev/gang-min": "2"}
    pods = [make_pod(name, 8, labels=labels, gates=(ADMISSION,)) for name in ("v", "w")]
    state = make_state(*pods, *map(make_node, nodes))
    state.gang_check = True
    found = explain(state, pods[0])
    assert found.fits == fits
    assert "2 held by scheduling gates" in found.gang
    assert all(one.gates for one in state.gangs.members("stowage default/g"))
