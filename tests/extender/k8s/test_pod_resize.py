"""What a pod holds while it is resized in place; tests/cases/resize-* have the rule as users see it."""

import pytest

from extender.k8s.pod_manifest import PodManifest


def amounts(cpu, memory="4Gi"):
    return {"cpu": cpu, "memory": memory}


def pod(requested, *, actual=None, allocated=None, reason="", **spec):
    """A pod whose container requests and has these amounts of CPU."""
    status = {"name": "main"}
    if actual is not None:
        status["resources"] = {"requests": amounts(actual)}
    if allocated is not None:
        status["allocatedResources"] = amounts(allocated)
    container = {"name": "main", "resources": {"requests": {**amounts(requested), "nvidia.com/gpu": "1"}}}
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    manifest = {
        "metadata": {"name": "p", "uid": "p", "resourceVersion": "1"},
        "spec": {"nodeName": "n", "containers": [container], **spec},
        "status": {"phase": "Running", "containerStatuses": [status], "conditions": conditions},
    }
    return PodManifest.from_value(manifest).record()


def held_cpu(record):
    return dict(record.held.containers[0].requests)["cpu"]


@pytest.mark.parametrize(
    ("record", "cpu"),
    [
        (pod("4", actual="8", allocated="8", reason="Deferred"), "8"),  # a shrink that is not done
        (pod("8", actual="4", allocated="4", reason="Deferred"), "8"),  # a growth that is not done
        (pod("4", actual="4", allocated="6"), "6"),
        (pod("4", actual="6", allocated="4"), "6"),
        (pod("200", actual="4", allocated="4", reason="Infeasible"), "4"),
        (pod("200", actual="4", allocated="6", reason="Infeasible"), "6"),
        (pod("2", actual="4", allocated="4", reason="Infeasible"), "4"),
        (pod("200", allocated="4", reason="Infeasible"), "200"),  # before 1.33
    ],
)
def test_cpu(record, cpu):
    assert held_cpu(record) == cpu
    assert dict(record.held.containers[0].requests)["nvidia.com/gpu"] == "1"
    assert dict(record.spec.containers[0].requests)["cpu"] != cpu or record.resized is None


@pytest.mark.parametrize("actual", [None, "2", "2000m", "1"])
def test_nothing_is_kept_where_the_status_says_nothing_else(actual):
    record = pod("2", actual=actual, allocated=actual)
    assert record.resized is None
    assert record.spec is pod("2").spec


def test_a_quantity_that_cannot_be_read_is_a_problem():
    record = pod("4", actual="much")
    assert record.held is record.spec
    assert "what it holds while it is resized: quantity 'much'" in record.problem
