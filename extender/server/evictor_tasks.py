"""The tasks of the evictor, as far as the settings want them: its election, its loop and the shield."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from extender.background import Background, Run
from extender.server.leader_elector import LeaderElector, elector_of
from extender.settings import Settings
from extender.source.interface import Source

if TYPE_CHECKING:  # it loads kernels
    from extender.server.engine import Engine


class EvictorTasks:
    """Uses the Lease of its own if the setting ``evictor_lease`` names one, else that of the service."""

    def __init__(self, settings: Settings, source: Source, elector: LeaderElector | None) -> None:
        """``elector``: that of the service. Raises ``Unavailable``."""
        self._settings, self._source = settings, source
        self._evicts, self._keeps = settings.evictor != "off", settings.shield_configmap is not None
        self._own: LeaderElector | None = None
        self._elector = elector
        if self._evicts or self._keeps:
            self._own = elector_of(settings.evictor_lease, settings, source, limits_binds=False)
            self._elector = self._own or elector
        if self._elector is not None and (self._evicts or self._keeps):
            self._api = source.evictor_api(self._elector.write_deadline)

    async def run(
        self, engine: Engine, until_ready: Run, registry: CollectorRegistry, background: Background
    ) -> None:
        """Until cancelled, or at once if there is nothing to do."""
        await background.keep_all(self._tasks(engine, until_ready, registry))

    async def leave(self) -> None:
        """Release the Lease of the evictor after the last write."""
        if self._own is not None:
            await self._own.resign()

    def _tasks(
        self, engine: Engine, until_ready: Run, registry: CollectorRegistry
    ) -> Iterator[tuple[str, Run]]:
        # Here, because they load kernels.
        from extender.evictor.loop import Evictor
        from extender.evictor.metrics import EvictorMetrics
        from extender.evictor.shield import ShieldKeeper

        elector, settings = self._elector, self._settings
        if elector is None or not (self._evicts or self._keeps):
            return
        if self._own is not None:
            yield "election of the evictor", partial(self._own.run, until_ready)
        if self._evicts:
            metrics = EvictorMetrics(registry)
            asked = engine.asked()
            evictor = Evictor(engine.state, self._source, self._api, elector, settings, asked, metrics)
            yield "evictor", evictor.run
        if settings.shield_configmap is not None:
            namespace, _, name = settings.shield_configmap.partition("/")
            keeper = ShieldKeeper(engine.state.disruptions, self._api, elector, namespace, name)
            yield "shield", keeper.run
