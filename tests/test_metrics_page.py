"""docs/metrics.md lists what /metrics serves, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from extender.evictor.kueue_boosts import KueueBooster
from extender.evictor.metrics import EvictorMetrics
from extender.k8s.objects import Owner, Pod, Upserted
from extender.queues.disruptions import NO_QUEUE_LABEL
from extender.server.service import Service
from extender.server.tls import Tls, TlsFiles
from extender.settings import Settings
from extender.source.interface import WatchStatus
from extender.source.rest import Refused
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.certificates import Authority, Secret
from tests.extender.builders import make_node, make_pod

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
PROCESS = "stowage_process_"


class Live(SnapshotSource):
    """A snapshot that has an age, a history, and a Lease."""

    def watches(self):
        return {"Node": WatchStatus("nodes", silent=1.0, ends={"in_time": 2}), "Pod": WatchStatus("pods")}

    def api_client(self, needed_by):
        class Written:
            def exchange(self, method, path, within, body=None):
                """The Lease does not exist, and can be created."""
                if method == "GET":
                    raise Refused(404, "")
                return body

        return Written()


async def busy_service() -> Service:
    """One that has a value for every metric."""
    settings = Settings(leader_election="default/stowage", demand=({"resources": {"nvidia.com/gpu": "1"}},))
    service = Service(settings, Live(Snapshot(), "test"), "1.2.3")
    evictor = EvictorMetrics(service.metrics.registry)
    evictor.nominations.labels("made").inc()
    KueueBooster(None, None, None, service.metrics.registry)  # type: ignore[arg-type]
    with TemporaryDirectory() as directory:
        secret = Secret(Path(directory) / "tls")
        secret.certify(Authority().server())
        Tls(TlsFiles(secret.path("tls_crt"), secret.path("tls_key")), service.metrics.registry)
    engine = await service.start()
    mig, spot = {"nvidia.com/mig-1g.10gb": "7"}, {"karpenter.sh/capacity-type": "spot"}
    busy = make_node("busy", labels={"nvidia.com/mig.config.state": "pending"})
    lost = make_pod("lost", 1, node_name="a", started=1.0, owner=Owner("Job", "j", "u"))
    nodes = [make_node("a"), make_node("mig", 0, **mig), make_node("spot", 2, labels=spot), busy]
    engine.apply([*map(Upserted, nodes), Upserted(lost), Upserted(make_pod("waits", 9))])
    ended = Pod("default", "lost", lost.uid, lost.spec, "a", owner=lost.owner, deleting=True,
                disruption="PreemptionByScheduler")  # fmt: skip
    engine.apply([Upserted(ended)])
    engine.state.end_costs.results["learned", 0.5, "held"] += 1
    service.metrics.answered("filter", "fits", 0.001)
    service.metrics.nothing_fitted(["not enough free GPUs"])
    service.metrics.nodes_filtered({"fits": 2})
    service.metrics.victims_proposed(["batch"], "")
    service.metrics.pod_bound("", 3.0)
    await service.render_metrics()
    return service


def served(service: Service) -> dict[str, tuple[tuple[str, ...], str]]:
    """Labels and type of each metric."""
    found = {}
    for family in service.metrics.registry.collect():
        assert family.samples, family.name
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = family.name + "_total" * (family.type == "counter")
        found[name] = tuple(labels), family.type
    return found


def listed() -> dict[str, tuple[tuple[str, ...], str]]:
    """The same, from the lists of the page."""
    rows = re.findall(r"^- `(stowage_\w+)`(.*?): (.+)$", PAGE.read_text(), re.MULTILINE)
    assert len({name for name, _, _ in rows}) == len(rows)
    return {
        name: (
            tuple(sorted(re.findall(r"`(\w+)`", labels))),
            "counter"
            if name.endswith("_total")
            else "histogram"
            if tells.startswith("histogram")
            else "gauge",
        )
        for name, labels, tells in rows
    }


async def test_the_lists_are_what_is_served() -> None:
    found = served(await busy_service())
    process = {name for name in found if name.startswith(PROCESS)}
    assert {name: one for name, one in found.items() if name not in process} == listed()
    assert {*re.findall(rf"`({PROCESS}\w+)`", PAGE.read_text())} == process


async def test_names_follow_the_conventions() -> None:
    """prometheus.io/docs/practices/naming: base units, ``_total`` for counters and for nothing else."""
    for name, (_, kind) in served(await busy_service()).items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|milli|mib|gib|minutes|percent)(_|$)", name), name


async def test_no_label_has_more_values_than_are_known_beforehand() -> None:
    """Nothing that a pod's author writes becomes a label."""
    service = await busy_service()
    engine = service.engine
    assert engine is not None
    before = {line.rpartition(" ")[0] for line in (await service.render_metrics()).decode().splitlines()}
    odd = [
        make_pod(
            f"p{number}", number, labels={"stowage.dev/queue": f"q{number}"}, owner=Owner(f"K{number}", "x")
        )
        for number in range(1, 30)
    ]
    engine.apply([Upserted(pod) for pod in odd])
    after = {line.rpartition(" ")[0] for line in (await service.render_metrics()).decode().splitlines()}
    assert after == before
    assert NO_QUEUE_LABEL in str(before)


async def test_gpu_seconds_add_up_from_scrape_to_scrape() -> None:
    service = await busy_service()
    assert service.engine is not None
    service.engine.apply([Upserted(make_pod("runs", 1, node_name="a"))])
    await service.render_metrics()  # it has its GPU from now on
    text = (await service.render_metrics()).decode()
    [line] = [one for one in text.splitlines() if one.startswith("stowage_namespace_gpu_seconds_total{")]
    assert 'workload_namespace="default"' in line
    assert float(line.rpartition(" ")[2]) > 0
