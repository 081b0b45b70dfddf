"""Fixtures of the end-to-end tests: one real control plane for the session, emptied after each test."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .controlplane.api import Api
from .controlplane.build import missing
from .controlplane.cluster import ControlPlane
from .controlplane.process import tail
from .kueue import MISSING as NO_KUEUE
from .recorder import Recorder
from .stowage import Stowage, service_account
from .tools import Tools
from .volcano import MISSING as NO_VOLCANO

# A failed assertion shows its values.
pytest.register_assert_rewrite("tests.e2e.binding", "tests.e2e.sharing")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if missing():
        pytest.exit("the control plane is not built: python -m tests.e2e.controlplane.build", returncode=1)
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with an empty cluster, which is emptied again after the test."""
    yield control_plane
    control_plane.api.clean_up()


@pytest.fixture
def api(cluster: ControlPlane) -> Api:
    return cluster.api


@pytest.fixture(scope="session")
def tools(control_plane: ControlPlane) -> Tools:
    return Tools(control_plane)


@pytest.fixture(scope="session")
def stowage_kubeconfig(control_plane: ControlPlane) -> Path:
    return service_account(control_plane)


@pytest.fixture(scope="session")
def running_stowage(control_plane: ControlPlane, stowage_kubeconfig: Path) -> Iterator[Stowage]:
    with Stowage(control_plane, stowage_kubeconfig) as stowage:
        yield stowage


@pytest.fixture
def stowage(cluster: ControlPlane, running_stowage: Stowage) -> Stowage:
    """A Stowage that watches the cluster during the whole session."""
    return running_stowage


@pytest.fixture
def new_stowage(cluster: ControlPlane, stowage_kubeconfig: Path) -> Iterator[Stowage]:
    """One that remembers nothing of earlier tests: no pod that was evicted (a pod of the same name would be
    shielded), and no demand."""
    with Stowage(cluster, stowage_kubeconfig, name="stowage-new") as stowage:
        yield stowage


@pytest.fixture
def recorder(stowage: Stowage) -> Iterator[Recorder]:
    """Records what kube-scheduler and Stowage send each other, if kube-scheduler uses its URL."""
    with Recorder(stowage.url) as recorder:
        yield recorder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows the end of every component's log with a failed test."""
    report = yield
    plane = getattr(item, "funcargs", {}).get("control_plane")
    if report.failed and isinstance(plane, ControlPlane):
        for log in sorted(plane.logs.glob("*.log")):
            report.sections.append((f"end of {log.name}", tail(log)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each program that is not there, at the end of every run that skips tests because of it."""
    skipped = terminalreporter.stats.get("skipped", [])
    for text in (NO_KUEUE, NO_VOLCANO):
        if count := sum(text in str(report.longrepr) for report in skipped):
            terminalreporter.write_line(f"{count} tests were SKIPPED: {text}", red=True)
