"""An ordinary user creates and annotates pods to harm others, and 300 normal pods still all run."""

import re
from collections import defaultdict
from pathlib import Path

from . import hostile
from .audit import runs
from .binding import configuration
from .controlplane.api import Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU, LABEL_SETS
from .sharing import COMPUTE, INDICES, MEMORY, MIB, PRODUCT, own_pod
from .stowage import Stowage, applied
from .workload import node, pod

PLAIN, SHARED, GPUS = 20, 10, 8
WHOLE, PARTS = 120, 180  # the normal pods, with one GPU each and with a quarter of a GPU each


def test_normal_pods_get_their_place_beside_hostile_ones(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    for one in nodes():
        api.create(one)
    with (
        hostile.ordinary_user(cluster, api) as author,
        applied(api, "rbac-bind.yaml"),
        Stowage(cluster, stowage_kubeconfig, BIND="true") as stowage,
        cluster.scheduler(configuration(stowage.url)),
    ):
        running = place_what_the_author_runs(author, api)
        for number, name in enumerate(running):
            note = hostile.UNREADABLE[number % len(hostile.UNREADABLE)]
            author.patch("Pod", name, {"metadata": {"annotations": note}})
        for one in (*hostile.waiting_pods(), *hostile.intruders("plain-19"), *hostile.intruders("shared-9")):
            author.create(one)
        normal = normal_pods()
        half = len(normal) // 2
        api.create_all(normal[:half])
        eventually(lambda: len(placed(api)) >= half // 3, within_s=120, what="a sixth of the pods runs")
        stowage.process.restart()
        api.create_all(normal[half:])
        eventually(lambda: len(placed(api)) == len(normal), within_s=180, what="every normal pod runs")
        assert no_gpu_is_given_out_twice(api, running) == {}
        assert stowage.status("/healthz") == 200
        check_the_log(stowage)


def nodes() -> list[Object]:
    plain = [node(f"plain-{n}", {GPU: GPUS}, labels=LABEL_SETS["h100-sxm-8-whole"]) for n in range(PLAIN)]
    sharing = {"stowage.dev/gpu-sharing": "true", GPU + ".count": str(GPUS)} | PRODUCT
    return plain + [node(f"shared-{n}", {}, labels=sharing) for n in range(SHARED)]


def normal_pods() -> list[Object]:
    whole = [pod(f"normal-whole-{n}", {GPU: 1}) for n in range(WHOLE)]
    return whole + [own_pod(f"normal-part-{n}", "250m", "8Gi") for n in range(PARTS)]


def place_what_the_author_runs(author: Api, api: Api) -> dict[str, list[tuple[str, str, int, int]]]:
    """Pods with whole GPUs and with parts; by name what each has: (node, GPU, milli, MiB)."""
    names = [f"train-{n}" for n in range(2)] + [f"part-{n}" for n in range(10)]
    for name in names:
        author.create(pod(name, {GPU: GPUS}) if name.startswith("train") else own_pod(name, "500m", "30Gi"))
    eventually(
        lambda: all(runs(api.get("Pod", name)) for name in names), within_s=60, what="the author's pods run"
    )
    return {name: shares(api.get("Pod", name)) for name in names}


def shares(one: Object) -> list[tuple[str, str, int, int]]:
    """What a bound pod has of each GPU, read before its annotations are changed."""
    notes = one["metadata"].get("annotations", {})
    if INDICES not in notes:
        return []
    milli, mib = int(notes[COMPUTE].removesuffix("m")), int(notes[MEMORY].removesuffix("Gi")) * 1024
    return [(one["spec"]["nodeName"], index, milli, mib) for index in notes[INDICES].split(",")]


def placed(api: Api) -> list[Object]:
    """The normal pods that run."""
    return [
        one for one in api.list("Pod")["items"] if one["metadata"]["name"].startswith("normal-") and runs(one)
    ]


def no_gpu_is_given_out_twice(
    api: Api, before: dict[str, list[tuple[str, str, int, int]]]
) -> dict[tuple[str, str], tuple[int, int]]:
    """The over-committed GPUs: compute in milli, memory in MiB."""
    held: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for found in (*before.values(), *(shares(one) for one in placed(api))):
        for on, index, milli, mib in found:
            held[on, index].append((milli, mib))
    sums = {gpu: (sum(m for m, _ in all_), sum(m for _, m in all_)) for gpu, all_ in held.items()}
    assert len(sums) > GPUS
    return {gpu: found for gpu, found in sums.items() if found[0] > 1000 or found[1] > MIB}


def check_the_log(stowage: Stowage) -> None:
    """The log has no internal error, and no line quotes much of what the author wrote."""
    lines = stowage.process.log.read_text().splitlines()
    assert not [line for line in lines if re.search('internal error|Traceback| failed"', line)]
    assert max(map(len, lines)) < 1000
