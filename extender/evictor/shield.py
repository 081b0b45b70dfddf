"""Stores in a ConfigMap the jobs that lost pods recently, so that they are shielded after a restart, and the
work that moves lost in the last hour.

Every replica reads it at startup; the leader writes it. It is JSON under the key ``disruptions.json``.
"""

from __future__ import annotations

import asyncio
import json
import logging

from extender.evictor.actions import Leadership
from extender.queues.disruptions import DisruptionLog
from extender.source.errors import WriteError
from extender.source.evictor_api import EvictorApi
from extender.untrusted.limits import SHIELD_SIZE

KEY = "disruptions.json"
INTERVAL = 2.0
"""Seconds between two writes, and between two attempts to read."""

_log = logging.getLogger(__name__)


class ShieldKeeper:
    """A log of disruptions, and the ConfigMap that stores it."""

    def __init__(
        self, log: DisruptionLog, api: EvictorApi, leadership: Leadership, namespace: str, name: str
    ) -> None:
        self._disruptions, self._api, self._leadership = log, api, leadership
        self._namespace, self._name = namespace, name
        self._stored: str | None = None  # None until it has been read in this term
        self._was_leading = False
        self._problem = ""

    async def run(self) -> None:
        """Read, then write changes, until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(INTERVAL)

    async def step(self) -> None:
        """Read the ConfigMap if due, and write it if this replica leads and its log differs."""
        leads = self._leadership.is_leader
        if leads and not self._was_leading:
            self._stored = None  # another replica may have written it
        self._was_leading = leads
        try:
            problem = await self._read() if self._stored is None else await self._write() if leads else ""
        except WriteError as error:
            self._stored, problem = None, f"{error} (status {error.status})"
        if problem and problem != self._problem:  # logged once
            _log.warning("the shield in ConfigMap %s/%s: %s", self._namespace, self._name, problem)
        self._problem = problem

    async def _read(self) -> str:
        """Returns a problem, "" for none."""
        data = await self._api.read_config_map(self._namespace, self._name)
        self._stored = text = data.get(KEY, "")
        if len(text) > SHIELD_SIZE:
            return "it is too large"
        try:
            self._disruptions.load(json.loads(text or "{}"))
        except (ValueError, RecursionError):
            return "it is not JSON"
        return ""

    async def _write(self) -> str:
        """Returns a problem, "" for none."""
        text = json.dumps(self._disruptions.dump(), separators=(",", ":"))
        if text == self._stored:
            return ""
        if len(text) > SHIELD_SIZE:
            return "there is too much to write"
        with self._leadership.hold_during_write():
            await self._api.write_config_map(self._namespace, self._name, {KEY: text})
        self._stored = text
        return ""
