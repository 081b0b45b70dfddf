"""What pods request: effective requests by kube-scheduler's rules, and the GPU devices among them."""

from __future__ import annotations

import pytest

from extender.dialects.pod_request import request_of
from extender.k8s.objects import Container, Pod, PodSpec

GPU = "nvidia.com/gpu"


def container(**requests: str) -> Container:
    return Container(requests=tuple(requests.items()))


def gpus(count: int, *, sidecar: bool = False) -> Container:
    return Container(requests=((GPU, str(count)),), sidecar=sidecar)


def pod(*containers: Container, init: tuple[Container, ...] = (), **spec) -> Pod:
    return Pod("default", "p", spec=PodSpec(containers, init, **spec))


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (pod(gpus(2), gpus(1)), 3),
        (pod(gpus(2), init=(gpus(4), gpus(3))), 4),  # init containers run one after another: the peak counts
        (pod(gpus(2), init=(gpus(1, sidecar=True), gpus(4))), 5),  # 4 beside the sidecar's 1
        (pod(gpus(4), init=(gpus(1, sidecar=True), gpus(2))), 5),  # 4 beside the sidecar's 1
        (pod(gpus(1), init=(gpus(4), gpus(2, sidecar=True))), 4),  # the sidecar starts when the 4 are free
    ],
)
def test_init_containers_count_by_peak_and_sidecars_add(spec, count):
    assert request_of(spec).devices == ((GPU, count),)


# Pod-level resources by the rule of ``PodRequests`` in k8s.io/component-helpers, resource/helpers.go.
NATIVE = (("cpu", "1"), ("memory", "1Gi"))
ONE, SIDECAR = Container("a", NATIVE), Container("s", NATIVE, sidecar=True)


@pytest.mark.parametrize(
    ("spec", "cpu", "memory"),
    [
        (PodSpec((ONE,), overhead=(("cpu", "250m"),)), 1250, 1024),
        (PodSpec((ONE,), requests=(("memory", "4Gi"),)), 1000, 4096),
        # A resource that only the overhead has does not replace what containers request.
        (PodSpec((ONE,), requests=(("memory", "4Gi"),), overhead=(("cpu", "250m"),)), 1250, 4096),
        (PodSpec((ONE,), requests=(("cpu", "500m"),)), 500, 1024),
        (
            PodSpec(
                *((ONE,), (container(cpu="8"), SIDECAR)),
                requests=(("cpu", "3"),),
                overhead=(("cpu", "100m"), ("memory", "1Mi")),
            ),
            3100,
            2049,
        ),
        (PodSpec((ONE,), (SIDECAR, container(cpu="8"))), 9000, 2048),
        # A limit counts if there is no request (``defaultPodRequests``).
        (PodSpec((Container("a"),), limits=(("cpu", "2"),)), 2000, 0),
        (PodSpec((ONE,), limits=(("cpu", "2"),)), 1000, 1024),
        # Resources that a pod cannot request as a whole do not count.
        (PodSpec((ONE,), requests=((GPU, "4"), ("cpu", "2"))), 2000, 1024),
    ],
)
def test_pod_level_resources(spec, cpu, memory):
    request = request_of(Pod("default", "p", spec=spec))
    assert (request.cpu_milli, request.memory_mib) == (cpu, memory)
    assert not request.wants_gpu
