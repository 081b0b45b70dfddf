"""Jobs of many pods start whole on a real control plane, whichever operator made them. Of their kinds only
the names are served, and no operator runs: the test creates the objects and the pods that it would make."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.examples import some
from tests.job_kinds import GPUS, JOBS, WORKERS, Job

from .controlplane.api import COLLECTIONS, NAMESPACE, Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .custom_kinds import serving
from .rush import GPU, LABEL_SETS
from .stowage import Stowage, scheduler_configuration
from .test_waiting import failures
from .workload import node

H100 = LABEL_SETS["h100-sxm-8-whole"]


def definitions() -> list[Object]:
    """CustomResourceDefinitions of all kinds, without a schema."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for make in JOBS.values():
        job = make("any")
        group, _, version = job.object["apiVersion"].partition("/")
        found.setdefault((group, job.object["kind"], job.plural), set()).add(version)
    return [definition(*named, sorted(versions)) for named, versions in found.items()]


def definition(group: str, kind: str, plural: str, versions: Sequence[str]) -> Object:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    served = [
        {"name": one, "served": True, "storage": one == versions[0], "schema": schema} for one in versions
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": served},
    }


@pytest.fixture(scope="module")
def stowage_with_jobs(control_plane: ControlPlane, stowage_kubeconfig: Path) -> Iterator[Stowage]:
    """With the rights of deploy/rbac.yaml."""
    with (
        serving(control_plane.api, definitions()),
        Stowage(control_plane, stowage_kubeconfig, name="stowage-jobs") as running,
    ):
        yield running


@pytest.fixture
def jobs(api: Api, request: pytest.FixtureRequest) -> Iterator[list[Job]]:
    """Three jobs of the kind, the objects of which are created and deleted."""
    made = [JOBS[request.param](f"{request.param.lower()}-{name}") for name in "abc"]
    kind, plural = made[0].object["kind"], made[0].plural
    path = f"/apis/{made[0].object['apiVersion']}/namespaces/{NAMESPACE}/{plural}"
    COLLECTIONS[kind] = path
    for job in made:
        created = api.create(job.object)
        for pod in job.pods:
            of_an_object = pod["metadata"].pop("ownerReferences")[0]
            del pod["metadata"]["uid"]
            if of_an_object["kind"] == kind:  # pods of owners that are not there are collected as garbage
                owner = of_an_object | {"uid": created["metadata"]["uid"]}
                pod["metadata"]["ownerReferences"] = [owner]
    yield made
    for job in made:
        api.delete(kind, job.object["metadata"]["name"])


def with_gpus(job: Job) -> set[str]:
    return {
        one["metadata"]["name"] for one in job.pods if one["spec"]["containers"][0]["resources"]["limits"]
    }


def started(api: Api, job: Job) -> int:
    """How many of its pods with GPUs have a node."""
    bound = {one["metadata"]["name"] for one in api.list("Pod")["items"] if one["spec"].get("nodeName")}
    return len(with_gpus(job) & bound)


def create_in_order(api: Api, pods: Sequence[Object]) -> None:
    for pod in pods:
        api.create(pod)


@pytest.mark.parametrize("jobs", some(sorted(JOBS), 4), indirect=True)
def test_a_job_starts_whole(
    cluster: ControlPlane, api: Api, stowage_with_jobs: Stowage, jobs: list[Job]
) -> None:
    """Room for 4 of 16: none starts. Room for 16: all start. Two jobs at once: one starts whole."""
    first, second, third = jobs
    api.create_all(node(f"n{number}", {GPU: GPUS}, labels=H100) for number in range(4))
    stowage_with_jobs.flush(api)
    with cluster.scheduler(scheduler_configuration(stowage_with_jobs.url)):
        create_in_order(api, first.pods)
        eventually(
            lambda: all(failures(api, name) for name in with_gpus(first)),
            within_s=60,
            what="all were tried",
        )
        time.sleep(2)
        assert started(api, first) == 0
        api.create_all(node(f"more-{number}", {GPU: GPUS}, labels=H100) for number in range(WORKERS - 4))
        eventually(lambda: started(api, first) == WORKERS, within_s=90, what="all start")

        api.create_all(node(f"next-{number}", {GPU: GPUS}, labels=H100) for number in range(WORKERS + 3))
        create_in_order(api, [one for pair in zip(second.pods, third.pods, strict=True) for one in pair])
        eventually(
            lambda: max(started(api, second), started(api, third)) == WORKERS, within_s=90, what="one starts"
        )
        time.sleep(2)
        assert sorted((started(api, second), started(api, third))) == [0, WORKERS]
