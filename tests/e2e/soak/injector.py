"""Runs the faults of a plan when their turn comes, several at a time."""

import time
import traceback
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .faults import faults
from .plan import Planned
from .stack import Stack
from .watch import Watch

AT_ONCE = 3  # faults that run at the same time, at most


@dataclass(slots=True)
class Done:
    """A fault that was made; times in monotonic seconds, ``end`` None while it lasts."""

    planned: Planned
    begin: float
    end: float | None = None


class Injector:
    """Begins the faults in the order of the plan.

    Its threads live as long as its ``with`` block: the kernel kills a program when the thread that started it
    ends (``controlplane.process.LEASH``).
    """

    def __init__(self, stack: Stack, watch: Watch, planned: list[Planned]) -> None:
        self._stack, self._watch, self._planned = stack, watch, planned
        self._by_kind = faults(watch)
        self._pool = ThreadPoolExecutor(AT_ONCE, "fault")
        self._running: list[Future[None]] = []
        self.done: list[Done] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    @property
    def begun(self) -> int:
        """How many faults have begun."""
        return len(self.done)

    @property
    def finished(self) -> bool:
        """Whether all faults of the plan are over."""
        return self.begun == len(self._planned) and self.idle()

    def idle(self) -> bool:
        """Whether no fault lasts."""
        self._running = [one for one in self._running if not one.done()]
        return not self._running

    def due(self, created: int) -> bool:
        """Whether the next fault may begin, after this many pods were created."""
        if self.begun == len(self._planned):
            return False
        return created >= self._planned[self.begun].at_pod and (self.idle() or len(self._running) < AT_ONCE)

    def begin_next(self) -> None:
        """Begin the next fault of the plan."""
        done = Done(self._planned[self.begun], time.monotonic())
        self.done.append(done)
        self._running.append(self._pool.submit(self._run, done))

    def times(self) -> list[tuple[float, float]]:
        """From and to, of each fault so far."""
        now = time.monotonic()
        return [(one.begin, now if one.end is None else one.end) for one in self.done]

    def by_kind(self) -> Counter[str]:
        """How many faults of each kind were made."""
        return Counter(one.planned.kind for one in self.done)

    def _run(self, done: Done) -> None:
        try:
            self._by_kind[done.planned.kind](self._stack, done.planned)
        except Exception:
            self._watch.found(f"the fault {done.planned} failed: {traceback.format_exc()}")
        done.end = time.monotonic()
