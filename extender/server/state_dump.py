"""``GET /debug/state``: all that this replica knows, line by line (``source.state_dump``).

The records are those of one moment. They are rendered in small parts, so that requests come in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from extender.cluster.state import State
from extender.settings import Settings
from extender.source.state_dump import Header, Learnt, end_line, header_line, record_line
from extender.untrusted.limits import STATE_DUMP

_BATCH = 20
"""Records that are rendered before other tasks run: about a millisecond."""
_SECRET = {"debug_token_file", "debug_token_review"}
"""Settings that say how the service is protected. No answer depends on them."""


async def state_lines(state: State, settings: Settings, version: str, replica: str) -> AsyncIterator[bytes]:
    """Some lines at a time. Ends without the last line beyond ``STATE_DUMP`` bytes."""
    records = state.records()  # they never change
    counts = state.learner.monitor.demand.counts()
    head = header_line(
        Header(
            version=version,
            replica=replica,
            at=time.time(),
            settings=settings.model_dump(mode="json", exclude_defaults=True, exclude=_SECRET),
            learnt=tuple(Learnt(request, weight) for request, weight in counts.items()),
            disruptions=state.disruptions.dump(),
            succeeded=state.gangs.succeeded(),
            eviction_helps_extenders=state.eviction_helps_extenders,
        )
    )
    size = len(head)
    yield head
    for start in range(0, len(records), _BATCH):
        lines = b"".join(map(record_line, records[start : start + _BATCH]))
        size += len(lines)
        if size > STATE_DUMP:
            return
        yield lines
        await asyncio.sleep(0)
    yield end_line(len(records))
