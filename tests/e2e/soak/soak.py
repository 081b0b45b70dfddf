"""One soak, from the first pod to the report."""

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ..controlplane.cluster import ControlPlane
from . import calm
from .injector import Injector
from .load import Load
from .pieces import Pieces
from .plan import Planned
from .readiness import Readiness
from .report import Report, cpu_seconds, report
from .stack import Stack, running
from .watch import Watch

PROGRESS_S, CLAIMS_S, STALLED_S = 30.0, 3.0, 30.0
LOG = "violations.log"
OUT_OF_MEMORY = "MemoryError", "failed to map segment", 'ImportError"'
"""The others are imports; Stowage logs the last one without its text."""
MOST_IN_VAIN, ENOUGH = 0.05, 50  # the share of evictions that faults excuse, of at least so many


def too_many_in_vain(outcome: Counter[str]) -> bool:
    """Whether faults are no excuse any more: with a fault every few seconds, one is always near."""
    return outcome.total() >= ENOUGH and outcome["beside a fault"] > MOST_IN_VAIN * outcome.total()


def entries(log: str) -> list[str]:
    """The lines of a log, and all lines of a traceback that ended the process as one."""
    found: list[str] = []
    for is_logged, lines in groupby(log.splitlines(), lambda line: line.startswith("{")):
        texts = list(lines)
        found += texts if is_logged else ["\n".join(texts)]
    return found


@dataclass
class Soak:
    """Pods, and the faults of ``planned``. The books are checked after every ``calm_every`` faults."""

    plane: ControlPlane
    command: str
    seed: int
    pods: int
    planned: list[Planned]
    calm_every: int = 50
    show: bool = True

    def run(self) -> Report:
        """Ctrl-C ends it early; the report then has what was done so far."""
        with ExitStack() as started:
            threads = started.enter_context(ExitStack())  # they end after the programs that they restart
            stack = started.enter_context(running(self.plane))
            watch = started.enter_context(Watch(self.plane.api, self.plane.api.list("Node")["items"]))
            load = started.enter_context(Load(self.plane.api, watch, self.seed, self.pods))
            pieces = started.enter_context(Pieces(self.plane.api, watch, self.seed))
            injector = threads.enter_context(Injector(stack, watch, self.planned))
            begin = self._shown = time.monotonic()
            cpu = cpu_seconds()
            try:
                with Readiness(stack, watch):
                    self._go(stack, watch, load, pieces, injector)
            except KeyboardInterrupt:
                print("stopped early; this is the report so far", flush=True)
            while not injector.idle():
                time.sleep(0.1)
            ended = report(
                self.command,
                time.monotonic() - begin,
                (cpu_seconds()[0] - cpu[0], cpu_seconds()[1] - cpu[1]),
                load,
                watch,
                injector,
                self._findings(stack, watch),
            )
        self._log(ended)
        return ended

    def _go(self, stack: Stack, watch: Watch, load: Load, pieces: Pieces, injector: Injector) -> None:
        calm_at, claims_at = self.calm_every, time.monotonic()
        created, created_at = 0, time.monotonic()
        while not (load.finished and injector.finished):
            time.sleep(0.05)
            if injector.due(load.created) or (load.finished and not injector.finished and injector.idle()):
                if injector.begun >= calm_at:
                    calm_at += self.calm_every
                    self._be_calm(stack, watch, load, pieces, injector)
                injector.begin_next()
            if load.created > created:
                created, created_at = load.created, time.monotonic()
            elif injector.idle() and not load.finished and time.monotonic() - created_at > STALLED_S:
                created_at = time.monotonic()
                # Either nothing that waits fits, or a violation.
                self._be_calm(stack, watch, load, pieces, injector)
            if time.monotonic() - claims_at > CLAIMS_S:
                claims_at = time.monotonic()
                watch.check_claims()
            with watch.lock:
                watch.evictions.settle(time.monotonic(), injector.times())
            self._show(watch, load, injector)
        self._be_calm(stack, watch, load, pieces, injector)

    def _be_calm(self, stack: Stack, watch: Watch, load: Load, pieces: Pieces, injector: Injector) -> None:
        while not injector.idle():
            time.sleep(0.1)
        placed, until = len(watch.bound_at), time.monotonic() + 30
        while not load.finished and len(watch.bound_at) == placed and time.monotonic() < until:
            time.sleep(0.05)  # the recovery of the last fault is measured, too
        load.paused = pieces.paused = True
        calm.check(stack, watch, pieces)
        load.withdraw()
        load.paused = pieces.paused = False

    def _findings(self, stack: Stack, watch: Watch) -> list[str]:
        crashes = [f"{'':8} crash: {text}" for keeper in stack.keepers for text in keeper.crashes]
        rivals = [f"{'':8} readiness: both replicas were ready at once"] * stack.service.rivals
        vain = [f"{'':8} evicted in vain: {victim}" for victim in watch.evictions.in_vain]
        vain += [f"{'':8} moved without an Event: {victim}" for victim in watch.evictions.untold]
        vain += [f"{'':8} moved again: {victim}" for victim in watch.evictions.moved_again]
        if too_many_in_vain(watch.evictions.outcome):
            vain.append(f"{'':8} evicted in vain: too many beside faults: {watch.evictions.outcome}")
        return watch.findings + crashes + rivals + vain + [f"{'':8} {text}" for text in self._errors(stack)]

    def _errors(self, stack: Stack) -> list[str]:
        """What Stowage calls an internal error, but for a lack of memory."""
        found = [text for one in stack.replicas for text in entries(one.process.log.read_text())]
        return [
            f"internal error: {text[:300]}"
            for text in found
            if ('"error"' in text or "Traceback" in text) and not any(why in text for why in OUT_OF_MEMORY)
        ]

    def _show(self, watch: Watch, load: Load, injector: Injector) -> None:
        if self.show and time.monotonic() - self._shown > PROGRESS_S:
            self._shown = time.monotonic()
            lasting = [one.planned.kind for one in injector.done if one.end is None]
            print(
                f"{time.strftime('%H:%M:%S')} {load.created} pods created, {len(watch.bound_at)} placed, "
                f"{watch.waiting()} wait, {injector.begun} faults, now {lasting}, "
                f"{len(watch.findings)} findings",
                flush=True,
            )

    def _log(self, ended: Report) -> None:
        if ended.findings:
            log: Path = self.plane.logs / LOG
            log.write_text(f"Run it again: {self.command}\n" + "\n".join(ended.findings) + "\n")
            print(f"{len(ended.findings)} violations, see {log}; run it again: {self.command}", flush=True)
