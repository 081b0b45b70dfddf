"""Pods of one manifest: those that belong together are answered together."""

from __future__ import annotations

import pytest

from extender.explain.answers import Explanation
from extender.explain.pod import explain_template
from extender.source.workloads import parse_templates
from tests.extender.builders import make_node, make_state

SPEC = "spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 8}}}]}"
GANG = 'labels: {stowage.dev/gang: g, stowage.dev/gang-min: "2"}'
PODS = "\n---\n".join(f"kind: Pod\nmetadata: {{name: {name}, {GANG}}}\n{SPEC}" for name in "vw")
JOB = f"""
kind: Job
metadata: {{name: train}}
spec: {{parallelism: 2, template: {{metadata: {{{GANG}}}, {SPEC}}}}}
"""
GROUP = f"""
kind: LeaderWorkerSet
metadata: {{name: vllm}}
spec:
  replicas: 5
  leaderWorkerTemplate: {{size: 2, leaderTemplate: {{{SPEC}}}, workerTemplate: {{{SPEC}}}}}
"""
PYTORCH = f"""
kind: PyTorchJob
metadata: {{name: bert}}
spec:
  runPolicy: {{schedulingPolicy: {{minAvailable: 2}}}}
  pytorchReplicaSpecs:
    Master: {{replicas: 1, template: {{{SPEC}}}}}
    Worker: {{replicas: 1, template: {{{SPEC}}}}}
"""


def answers(manifest: str, nodes: str) -> list[Explanation]:
    state = make_state(*map(make_node, nodes))
    state.gang_check = True
    templates = parse_templates(manifest, "the manifest")
    found = [explain_template(state, one, templates) for one in templates]
    assert not state.gangs.members("stowage default/g")
    return found


@pytest.mark.parametrize("manifest", [PODS, JOB, GROUP, PYTORCH])
def test_a_gang_of_one_manifest_fits_as_a_whole_or_not_at_all(manifest: str) -> None:
    for one in answers(manifest, "a"):
        assert one.fits == 0
        assert "not all members" in one.verdict.why or "gang" in one.verdict.why
        assert "0 of 2 members run, 2 required" in one.gang
    for one in answers(manifest, "ab"):
        assert one.fits == 2
        assert one.hints[0] == "All 2 pods that must start together fit now."


@pytest.mark.parametrize(
    ("workload", "held"),
    [
        ("metadata: {name: j}\nspec: {suspend: true, ", "its workload is suspended (spec.suspend: true)"),
        (
            "metadata: {name: j, labels: {kueue.x-k8s.io/queue-name: q}}\nspec: {",
            "held by the scheduling gate kueue.x-k8s.io/admission (Kueue has not admitted it to its queue)",
        ),
    ],
)
def test_a_workload_that_makes_no_pods_yet_is_answered_as_if_it_did(workload: str, held: str) -> None:
    (found,) = answers(f"kind: Job\n{workload}template: {{{SPEC}}}}}", "a")
    assert (found.held, found.fits) == (held, 1)
