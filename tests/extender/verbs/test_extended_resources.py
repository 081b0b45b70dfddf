"""Extended resources that some nodes offer as devices of DRA, through the state and the verbs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.evictor.decision import needs_no_plan
from extender.explain.pod import explain
from extender.explain.words import Word
from extender.k8s.objects import Container, PodClaim, PodSpec, Upserted
from extender.protocol.codec import PreemptArgs, ProposedVictims
from extender.trial.trial import Item, Trial
from extender.verbs.evaluate import reason_on
from extender.verbs.preempt import preempt
from packing.model.reasons import Reason
from tests.extender.builders import GPU, NOW, make_node, make_pod, make_state
from tests.extender.dra.nvidia import gpu, spec
from tests.extender.dra.records import parse_claim, parse_class, parse_slice
from tests.extender.verbs.test_claims import left, scores, wish


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


def test_gpus_that_are_given_out_as_devices_are_not_missing(served):
    names = ["counts", "full", "free", "bare"]
    assert left(served, make_pod("p", 2), names) == ["counts", "full", "free"]
    told = {option.node: option for option in explain(served, make_pod("p", 2)).best}
    assert told["free"].devices == ("gpu.nvidia.com/free/gpu-0", "gpu.nvidia.com/free/gpu-1")
    assert told.keys() == {"counts", "free"}
    [refusal] = [
        one for one in explain(served, make_pod("p", 2)).refusals if one.reason == str(Word.NO_DEVICES())
    ]
    assert (refusal.nodes, refusal.nearest) == (1, "full")
    assert not told["counts"].devices
    served.apply([Upserted(make_pod("runs", 1, node_name="free"))])
    assert not served.overcommitted  # it holds no counted device there


def test_a_device_on_a_node_that_is_used_already_is_preferred(served):
    assert scores(served, make_pod("p", 1), ["full", "free"]) == [10, 0]


def test_a_resource_that_only_a_class_knows_is_scored_too(served):
    """The name of the class is no GPU's, and the pod has no claim."""
    cards = {"extendedResourceName": "example.com/card", "selectors": [{"cel": {"expression": "true"}}]}
    served.apply([Upserted(parse_class("card", cards))])
    pod = replace(make_pod("p", 0), spec=PodSpec(containers=(Container("c", (("example.com/card", "1"),)),)))
    assert scores(served, pod, ["full", "free"]) == [10, 0]
    assert needs_no_plan(served, pod, ["full", "free"]) == "fits"


def test_gpus_of_containers_are_one_request_each(served):
    containers = tuple(Container(name, ((GPU, "1"),)) for name in "ab")
    pod = make_pod("p", spec=PodSpec(containers))
    (told,) = [option for option in explain(served, pod).best if option.node == "free"]
    assert len(told.devices) == 2


def test_a_class_may_be_asked_for_by_its_own_name(served):
    containers = (Container("c", (("deviceclass.resource.kubernetes.io/gpu", "2"),)),)
    pod = make_pod("p", spec=PodSpec(containers))
    assert left(served, pod, ["counts", "full", "free"], shortlist=64) == ["counts", "full", "free"]
    assert scores(served, pod, ["full", "free"]) == [9, 10]  # the first has not as many
    told = {option.node: option.devices for option in explain(served, pod).best}
    assert told["free"] == ("gpu.nvidia.com/free/gpu-0", "gpu.nvidia.com/free/gpu-1")


def test_a_node_is_not_refused_while_its_pool_is_renewed(served):
    served.apply([Upserted(parse_slice("free", spec(gpu(0), count=2, generation=2, node="free")))])
    assert left(served, make_pod("p", 2), ["free", "bare"], shortlist=64) == ["free"]


def test_a_node_that_gives_gpus_as_devices_is_not_refused_for_anything_else(served):
    """kube-scheduler checks its CPU, and whether it takes pods."""
    served.apply([Upserted(make_node("free", 0, cpu="0", labels={"nvidia.com/mig.config.state": "pending"}))])
    assert left(served, make_pod("p", 1), ["free", "bare"], shortlist=64) == ["free"]


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


def test_a_replay_places_no_pod_where_it_would_get_devices_of_dra(served):
    """They would have to be allocated, and nobody does that in a replay or a plan."""
    pod = make_pod("p", 1)
    rows = np.ones(served.fleet.arrays.capacity, bool)
    codes, _ = Trial(served, rows).evaluate(Item(pod.key, request_of(pod), rows, pod))
    fits = [name for name, row in served.fleet.rows.items() if codes[row] == Reason.FITS]
    assert fits == ["counts"]
