"""What pods request: effective requests by kube-scheduler's rules, and the GPU devices among them."""

from __future__ import annotations

import pytest

from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.k8s.objects import Container, Pod, PodSpec

GPU = "nvidia.com/gpu"


def container(**requests: str) -> Container:
    return Container(requests=tuple(requests.items()))


def gpus(count: int, *, sidecar: bool = False) -> Container:
    return Container(requests=((GPU, str(count)),), sidecar=sidecar)


def pod(*containers: Container, init: tuple[Container, ...] = (), **spec) -> Pod:
    return Pod("default", "p", spec=PodSpec(containers, init, **spec))


def test_containers_add_up():
    request = request_of(pod(container(cpu="500m", memory="1Gi"), container(cpu="1", memory="1")))
    assert (request.cpu_milli, request.memory_mib) == (1500, 1025)
    assert not request.wants_gpu


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


def test_overhead_adds_and_pod_level_resources_replace():
    request = request_of(pod(container(cpu="1"), overhead=(("cpu", "250m"),)))
    assert request.cpu_milli == 1250
    request = request_of(pod(container(cpu="1"), overhead=(("cpu", "250m"),), requests=(("cpu", "4"),)))
    assert request.cpu_milli == 4250


def test_devices_of_several_kinds():
    requests = {"nvidia.com/mig-1g.10gb": "2", "nvidia.com/gpu.shared": "1", "cpu": "1"}
    request = request_of(pod(container(**requests)))
    assert request.devices == (("nvidia.com/gpu.shared", 1), ("nvidia.com/mig-1g.10gb", 2))


def test_other_resources_are_left_to_the_scheduler():
    request = request_of(pod(container(**{"example.com/fpga": "1", "ephemeral-storage": "odd", GPU: "0"})))
    assert not request.wants_gpu


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (pod(), "no containers"),
        (pod(container(**{GPU: "-1"})), "nvidia.com/gpu"),
        (pod(container(**{GPU: "1e40"})), "nvidia.com/gpu"),
        (pod(container(cpu="fast")), "cpu"),
    ],
)
def test_impossible_requests_are_errors_that_name_the_resource(spec, text):
    with pytest.raises(RequestError, match=text):
        request_of(spec)


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


@pytest.mark.parametrize("text", ["0.5", "500m", "1500m", "1e-3"])
def test_a_part_of_an_extended_resource_is_refused(text):
    with pytest.raises(RequestError, match=rf"^nvidia.com/gpu: quantity '{text}' is not a whole number$"):
        request_of(pod(Container("a", ((GPU, text),))))
