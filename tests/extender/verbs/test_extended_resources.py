"""Extended resources that some nodes offer as devices of DRA, through the state and the verbs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import PodClaim, Upserted
from extender.protocol.codec import PreemptArgs, ProposedVictims
from extender.verbs.evaluate import reason_on
from extender.verbs.preempt import preempt
from packing.model.reasons import Reason
from tests.extender.builders import GPU, NOW, make_node, make_pod, make_state
from tests.extender.dra.nvidia import gpu, spec
from tests.extender.dra.records import parse_claim, parse_class, parse_slice
from tests.extender.verbs.test_claims import left, wish


@pytest.fixture
def served():
    """Whole GPUs of three nodes: counted on the first, devices on the others; one device is allocated."""
    made = make_state(
        make_node("counts", 2), make_node("full", 0), make_node("free", 0), make_node("bare", 0)
    )
    gpus = {"extendedResourceName": GPU, "selectors": [{"cel": {"expression": "true"}}]}
    held = {"driver": "gpu.nvidia.com", "pool": "full", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [held]}}}
    records = [parse_class("gpu", gpus), parse_claim("default", "held", {"devices": wish()}, status)]
    records += [parse_slice(name, spec(gpu(0), gpu(1), node=name)) for name in ("full", "free")]
    made.apply([Upserted(record) for record in records])
    return made


def test_preemption_does_not_miss_gpus_that_are_devices(served):
    served.apply([Upserted(make_pod("victim", 0, node_name="full", uid="v"))])
    arguments = PreemptArgs(
        make_pod("p", 2), {"full": ProposedVictims(["v"], 0), "bare": ProposedVictims(["v"], 0)}
    )
    assert preempt(served, arguments, NOW).candidates.keys() == {"full"}


def test_nvlink_cannot_be_required_of_devices_that_kube_scheduler_chooses(served):
    names = ["counts", "full", "free"]
    pod = make_pod("p", 2, annotations={"stowage.dev/nvlink": "required"})
    assert left(served, pod, names) == ["counts"]
    assert reason_on(served, pod, request_of(pod), "free") is Reason.ISLAND_TOO_SMALL
    one = make_pod("q", 1, annotations={"stowage.dev/nvlink": "required"})
    assert left(served, one, names) == names
    claims = make_pod("r", 0, annotations={"stowage.dev/nvlink": "required"})
    claims = replace(claims, spec=replace(claims.spec, claims=(PodClaim("gpus", "t"),)))
    with pytest.raises(RequestError, match="resource claims"):
        request_of(claims)
