"""The claim that kube-scheduler makes for extended resources; its own cases are in the e2e tests."""

from __future__ import annotations

import pytest

from extender.dra.pod_claims import class_resources, requests_for
from extender.k8s.objects import Container, PodSpec

GPU, NIC = "nvidia.com/gpu", "example.com/nic"


def container(gpus: int = 0, nics: int = 0, *, sidecar: bool = False) -> Container:
    asked = (("cpu", "1"), *((name, str(n)) for name, n in ((NIC, nics), (GPU, gpus)) if n))
    return Container("c", tuple(sorted(asked)), sidecar=sidecar)


def made(spec: PodSpec) -> dict[str, int | None]:
    found = requests_for(spec, {GPU: "gpus", NIC: "nics"})
    return {one.name: one.subrequests[0].count for one in found}


@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [
        ([], [2, 0, 1], {"container-0-request-1": 2, "container-2-request-1": 1}),
        ([1], [2], {"container-1-request-1": 2}),
        ([3], [2], {"container-0-request-1": 1, "container-1-request-1": 2}),
        ([3, 4, 1], [2], {"container-1-request-1": 2, "container-3-request-1": 2}),
        ([1], [0], {"container-0-request-1": 1}),
    ],
)
def test_init_containers_use_the_devices_of_later_containers(early, late, expected):
    assert made(PodSpec(tuple(map(container, late)), tuple(map(container, early)))) == expected


def test_a_sidecar_keeps_its_devices():
    sidecar = container(1, sidecar=True)
    before, after = (
        PodSpec((container(1),), (sidecar, container(2))),
        PodSpec((container(1),), (container(2), sidecar)),
    )
    assert made(before) == {
        "container-0-request-1": 1,
        "container-1-request-1": 1,
        "container-2-request-1": 1,
    }
    assert made(after) == {"container-1-request-1": 1, "container-2-request-1": 1}


def test_resources_by_the_name_of_a_class():
    spec = PodSpec(
        (Container("c", (("cpu", "1"), ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", "1"))),)
    )
    assert class_resources(spec) == ("deviceclass.resource.kubernetes.io/gpu.nvidia.com",)
    assert class_resources(PodSpec((container(1),))) == ()
