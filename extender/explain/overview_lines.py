"""What ``stowage top`` prints, without what finds it: commands print that of a running Stowage."""

from __future__ import annotations

from dataclasses import dataclass, field

from extender.cluster.totals import Totals


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node with GPUs. ``gpus``, ``not_offered``, ``used_gpus``, ``free_gpus``, ``whole`` and ``on_offer``
    are those of ``census.NodeCount``. ``used_percent``: the larger part of compute and memory that is in use,
    of each GPU that the node offers. ``note``: why the node takes nothing, and whether it is a spot node;
    ``problem``: what is not known of it. ``mig``: how many instances of each profile pods can get now.
    ``in_units``: the memory of its GPUs is counted in units of gpushare's plugin."""

    node: str
    model: str
    gpus: int
    not_offered: int
    whole: int
    used_gpus: float
    free_gpus: float
    on_offer: bool
    free_memory_mib: int
    memory_mib: int
    free_cpu_milli: int
    free_host_memory_mib: int
    pods: int
    used_percent: tuple[int, ...]
    islands: tuple[int, ...]
    note: str
    problem: str = ""
    zone: str = ""
    mig: dict[str, int] = field(default_factory=dict)
    in_units: bool = False


@dataclass(frozen=True, slots=True)
class StartForecast:
    """``half`` and ``most``: the Unix seconds by which a pod starts with a probability of 0.5 and 0.9, None
    where no end that can be foreseen makes room. ``needs``: the first of the pods that must end on ``node``
    before, of ``ends`` in all."""

    half: float | None
    most: float | None
    node: str = ""
    needs: tuple[str, ...] = ()
    ends: int = 0

    def text(self, now: float) -> str:
        """A sentence for people."""
        if self.half is None:
            return "It is not expected to start: no predictable end of a pod makes room for it."
        most = f"within {_span(self.most - now)}" if self.most is not None else "at an unknown time"
        more = f" and {self.ends - len(self.needs)} more" if self.ends > len(self.needs) else ""
        once = f", once {', '.join(self.needs)}{more} have ended on {self.node}" if self.needs else ""
        return f"It is likely to start within {_span(self.half - now)} (50 %), {most} (90 %){once}."


def _span(seconds: float) -> str:
    """About how long."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.{int(seconds < 10 * size)}f} {unit}"
    return "less than 1 min"


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """A pod that waits for a GPU. ``created`` in Unix seconds; ``why``, ``lacks`` and the first of its ways
    (``advice``) are those of the ``Verdict``; ``asked`` is ``asks`` in a line, ``labels`` what the page
    filters by, ``job`` its controller, such as ``Job train``. ``starts``: None where there is no forecast."""

    pod: str
    queue: str
    priority: int
    asks: dict[str, int | str]
    created: float
    why: str
    lacks: str = ""
    advice: str = ""
    asked: str = ""
    labels: tuple[str, ...] = ()
    starts: StartForecast | None = None
    job: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """``waiting`` has the most urgent of the pods that wait. ``unread``: pods with a node, and objects such
    as claims, of which something cannot be read."""

    totals: Totals
    nodes: tuple[NodeLine, ...]
    waiting: tuple[WaitingLine, ...]
    more_waiting: int
    unread: tuple[str, ...] = ()
