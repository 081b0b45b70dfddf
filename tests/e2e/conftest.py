"""Fixtures of the end-to-end tests: one real control plane for the session, emptied after each test."""

from collections.abc import Generator, Iterator

import pytest

from .controlplane.api import Api
from .controlplane.build import missing
from .controlplane.cluster import ControlPlane
from .controlplane.process import tail


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if missing():
        pytest.exit("the control plane is not built: python -m tests.e2e.controlplane.build", returncode=1)
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with an empty cluster; what the test leaves in it is taken away."""
    yield control_plane
    control_plane.api.clean_up()


@pytest.fixture
def api(cluster: ControlPlane) -> Api:
    return cluster.api


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows the end of every component's log with a failed test."""
    report = yield
    plane = getattr(item, "funcargs", {}).get("control_plane")
    if report.failed and isinstance(plane, ControlPlane):
        for log in sorted(plane.logs.glob("*.log")):
            report.sections.append((f"end of {log.name}", tail(log)))
    return report
