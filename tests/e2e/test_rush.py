"""1,500 pods at once on 100 nodes with 800 GPUs, without faults and with components killed half way."""

import time
from collections.abc import Callable

from . import rush
from .audit import Audit, runs
from .books import Books
from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .recorder import Recorder
from .stowage import Stowage, scheduler_configuration

HALF_WAY = 500  # pods bound


def test_every_pod_that_fits_runs_where_stowage_held_it_best(
    cluster: ControlPlane, api: Api, stowage: Stowage, recorder: Recorder
) -> None:
    audit = schedule_everything(cluster, recorder, half_way=lambda: None)
    check_the_end(api, audit, stowage)
    attempts = recorder.attempts()
    assert audit.bound == {uid: only(attempts[uid][-1].best) for uid in audit.bound}


def test_stowage_is_killed_half_way(
    cluster: ControlPlane, api: Api, stowage: Stowage, recorder: Recorder
) -> None:
    audit = schedule_everything(cluster, recorder, half_way=stowage.process.restart)
    check_the_end(api, audit, stowage)
    # kube-scheduler handles one pod at a time, and continues without scores if `prioritize` does not answer.
    attempts = recorder.attempts()
    unheard = [uid for uid in audit.bound if len(attempts[uid][-1].best) > 1]
    assert len(unheard) <= 1
    assert all(node in attempts[uid][-1].best for uid, node in audit.bound.items())


def test_the_api_server_is_killed_half_way(
    cluster: ControlPlane, api: Api, stowage: Stowage, recorder: Recorder
) -> None:
    audit = schedule_everything(cluster, recorder, half_way=cluster.apiserver.restart)
    check_the_end(api, audit, stowage)
    # kube-scheduler retries a binding without an answer, in vain: any attempt counts, not only the last.
    attempts = recorder.attempts()
    assert all(node in [only(one.best) for one in attempts[uid]] for uid, node in audit.bound.items())


def schedule_everything(cluster: ControlPlane, recorder: Recorder, *, half_way: Callable[[], None]) -> Audit:
    """Starts kube-scheduler when all pods wait, and calls `half_way` while it places them."""
    cluster.api.create_all(rush.nodes())
    cluster.api.create_all(rush.pods())
    with Audit(cluster.api) as audit, cluster.scheduler(scheduler_configuration(recorder.url)):
        started = time.monotonic()
        eventually(lambda: len(audit.bound) >= HALF_WAY, within_s=120, what=f"{HALF_WAY} pods are bound")
        half_way()
        eventually(audit.settled, within_s=240, what="every pod runs or waits", every_s=0.2)
        print(f"{len(audit.bound)} of {len(audit.pods)} pods placed in {time.monotonic() - started:.1f} s")
    return audit


def check_the_end(api: Api, audit: Audit, stowage: Stowage) -> None:
    """No pod is lost, no node was ever over-committed, and no waiting pod fits anywhere."""
    nodes, pods = api.list("Node")["items"], api.list("Pod")["items"]
    assert audit.findings == []
    assert {pod["metadata"]["name"] for pod in pods} == {pod["metadata"]["name"] for pod in rush.pods()}
    assert {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in pods if runs(pod)} == audit.bound
    books = Books(nodes, pods)
    waiting = [pod for pod in pods if not runs(pod)]
    assert [(pod["metadata"]["name"], books.fitting(pod)) for pod in waiting if books.fitting(pod)] == []
    stowage.flush(api)
    assert 0 < len(waiting) < len(pods) / 4  # GPUs are scarce, so placement matters; but most pods run


def only(nodes: list[str]) -> str:
    (node,) = nodes
    return node
