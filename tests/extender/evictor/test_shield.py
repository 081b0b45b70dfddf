"""The shield in a ConfigMap, with a real HTTP server."""

from __future__ import annotations

import json
import logging
import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from extender.evictor.shield import KEY, ShieldKeeper
from extender.source.evictor_api import EvictorApi
from extender.untrusted.limits import SHIELD_SIZE
from tests.extender.apiserver import ApiServer, source_of
from tests.extender.evictor.replica import UNHURRIED


class Leader:
    def __init__(self, is_leader: bool) -> None:
        self.is_leader = is_leader

    def hold_during_write(self) -> AbstractContextManager[None]:
        return nullcontext()


class Log:
    """A set of jobs."""

    def __init__(self, *jobs: str) -> None:
        self.jobs = set(jobs)

    def dump(self) -> dict[str, object]:
        return {"jobs": sorted(self.jobs)}

    def load(self, dumped: object) -> None:
        assert isinstance(dumped, dict)
        self.jobs |= set(dumped.get("jobs", ()))


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    api.evictions.config_maps.put({"metadata": {"namespace": "gpu", "name": "shield"}})
    return api


def keeper(api: ApiServer, directory: Path, log: Log, *, leads: bool) -> tuple[ShieldKeeper, Leader]:
    leader = Leader(leads)
    return ShieldKeeper(
        [log],
        EvictorApi(source_of(api, directory, timeouts=UNHURRIED).rest, lambda: math.inf),
        leader,
        "gpu",
        "shield",
    ), leader


def stored(api: ApiServer) -> object:
    return json.loads(api.evictions.config_maps.objects["gpu/shield"].get("data", {}).get(KEY, "null"))


async def test_the_leader_writes_and_everybody_reads(api: ApiServer, tmp_path: Path) -> None:
    mine, theirs = Log("a"), Log("b")
    leader, _ = keeper(api, tmp_path, mine, leads=True)
    other, lead = keeper(api, tmp_path, theirs, leads=False)
    await leader.step()
    assert stored(api) is None  # it has only read
    await leader.step()
    assert stored(api) == {"jobs": ["a"]}
    version = api.evictions.config_maps.version
    await leader.step()
    assert api.evictions.config_maps.version == version  # nothing has changed
    for _ in range(3):
        await other.step()
    assert (theirs.jobs, stored(api)) == ({"a", "b"}, {"jobs": ["a"]})
    mine.jobs.add("c")
    await leader.step()
    lead.is_leader = True  # it takes over: it reads what the other one wrote before it writes
    await other.step()
    await other.step()
    assert stored(api) == {"jobs": ["a", "b", "c"]}


@pytest.mark.parametrize("action", ["read", "write"])
@pytest.mark.parametrize("fault", ["500", "403", "409", "429", "hangup", "lost"])
async def test_a_fault_is_logged_once_and_nothing_is_lost(
    api: ApiServer, tmp_path: Path, action: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    api.evictions.faults[action].extend([fault] * 2)
    log = Log("a")
    leader, _ = keeper(api, tmp_path, log, leads=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            await leader.step()
    assert stored(api) == {"jobs": ["a"]}
    assert 1 <= len(caplog.records) <= 2  # a read between two failed writes succeeds


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "x" * (SHIELD_SIZE + 1)])
async def test_a_shield_that_cannot_be_read_is_ignored(
    api: ApiServer, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = {"namespace": "gpu", "name": "shield"}
    api.evictions.config_maps.put({"metadata": name, "data": {KEY: text}})
    leader, _ = keeper(api, tmp_path, Log("a"), leads=True)
    await leader.step()
    assert len(caplog.records) == 1
    await leader.step()
    assert stored(api) == {"jobs": ["a"]}


async def test_too_large_a_log_is_not_written(
    api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leader, _ = keeper(api, tmp_path, Log("x" * SHIELD_SIZE), leads=True)
    for _ in range(4):
        await leader.step()
    assert stored(api) is None
    assert [record.getMessage() for record in caplog.records] == [
        "the shield in ConfigMap gpu/shield: there is too much to write"
    ]
