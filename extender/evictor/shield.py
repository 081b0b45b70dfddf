"""Stores in a ConfigMap what must outlive a restart: the jobs that lost pods recently, which are shielded,
the work that moves lost in the last hour, and the nodes that are reserved for large jobs.

Every replica reads it at startup, and goes on reading it where nodes may be reserved; the leader writes it.
It is JSON under the key ``disruptions.json``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from extender.evictor.actions import Leadership
from extender.source.errors import WriteError
from extender.source.evictor_api import EvictorApi
from extender.untrusted.limits import SHIELD_SIZE

KEY = "disruptions.json"
INTERVAL = 2.0
"""Seconds between two writes, and between two attempts to read."""

_log = logging.getLogger(__name__)


class Stored(Protocol):
    """Something that outlives a restart."""

    def dump(self) -> Mapping[str, Any]:
        """All that ``load`` needs, as JSON values under names of its own."""

    def load(self, dumped: object) -> None:
        """Take in a dump, which may be invalid, and have other names."""


class ShieldKeeper:
    """The ConfigMap, and all that it stores. ``follows``: replicas that do not lead go on reading it."""

    def __init__(
        self,
        parts: Sequence[Stored],
        api: EvictorApi,
        leadership: Leadership,
        namespace: str,
        name: str,
        *,
        follows: bool = False,
    ) -> None:
        self._parts, self._api, self._leadership, self._follows = parts, api, leadership, follows
        self._namespace, self._name = namespace, name
        self._stored: str | None = None  # None until it has been read in this term
        self._was_leading = False
        self._problem = ""

    @property
    def leads(self) -> bool:
        """Whether this replica leads, and has read what the last leader wrote."""
        return self._leadership.is_leader and self._was_leading and self._stored is not None

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
            must_read = self._stored is None or (self._follows and not leads)
            problem = await self._read() if must_read else await self._write() if leads else ""
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
            dumped = json.loads(text or "{}")
            for part in self._parts:
                part.load(dumped)
        except (ValueError, RecursionError):
            return "it is not JSON"
        return ""

    async def _write(self) -> str:
        """Returns a problem, "" for none."""
        dumped = ChainMap(*(dict(part.dump()) for part in self._parts))
        text = json.dumps(dict(dumped), separators=(",", ":"))
        if text == self._stored:
            return ""
        if len(text) > SHIELD_SIZE:
            return "there is too much to write"
        with self._leadership.hold_during_write():
            await self._api.write_config_map(self._namespace, self._name, {KEY: text})
        self._stored = text
        return ""
