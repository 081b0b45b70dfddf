"""From the output of ``nvidia-smi topo -m`` to labels that say which GPUs of a node are NVLink peers.

An island is a group of GPUs all pairs of which are connected. A connected component is not enough: the eight
GPUs of a DGX-1V are one component, but only ``0-3`` and ``4-7`` are islands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LONGEST_VALUE = 63
"""Characters of a label's value. A longer one is left out."""
MOST_GPUS = 64
MOST_LINKS = 18
"""NVLinks of one GPU at most (nvml.h, NVML_NVLINK_MAX_LINKS), where it is not known how many a GPU has."""
_MOST_STEPS = 200_000
"""Steps of the search for the largest group."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU(\d{1,3})")
_LINKS = re.compile(r"NV(\d{1,3})")


class Unknown(Exception):
    """The topology is not known; the text says why."""


@dataclass(frozen=True)
class Topology:
    """``links[a][b]``: NVLinks between GPU a and GPU b, 0 for none. ``numa``: the NUMA node of each GPU, None
    where it is not known."""

    links: tuple[tuple[int, ...], ...]
    numa: tuple[int | None, ...]


@dataclass(frozen=True)
class Devices:
    """What the driver says of each GPU: whether it is in MIG mode, and how many of its NVLinks are active
    (None: not known)."""

    mig: tuple[bool, ...]
    active_links: tuple[int | None, ...]


def parse_topology(text: str) -> Topology:
    """Parse the output of ``nvidia-smi topo -m``. Raises Unknown.

    The header names the columns: GPUs, NICs, then affinities. Columns are separated by tabs, or by runs of
    spaces in copies. A cell is X, NV<links>, or how the GPUs are connected without NVLink (SYS, NODE, PHB,
    PXB, PIX); an unknown token means no NVLink.
    """
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if _cells(line)[:1] == ["GPU0"]), None)
    if start is None or not _is_header(_cells(lines[start])):
        raise Unknown("no header with GPU columns in the output of nvidia-smi topo -m")
    header = _cells(lines[start])
    gpus = [name for name in header if _GPU.fullmatch(name)]
    devices = next((i for i, name in enumerate(header) if " " in name), len(header))
    if header[: len(gpus)] != [f"GPU{i}" for i in range(len(gpus))] or len(gpus) > MOST_GPUS:
        raise Unknown("the GPU columns are not GPU0, GPU1, ... up to 64 of them")
    rows = []
    for line in lines[start + 1 :]:
        cells = _cells(line)
        if cells and _GPU.fullmatch(cells[0]):
            rows.append(cells)
        elif "Legend" in line:
            break
    if [row[0] for row in rows] != gpus or any(len(row) <= devices for row in rows):
        raise Unknown("the rows of the matrix are not those of its columns")
    matrix = [row[1 : 1 + len(gpus)] for row in rows]
    if any((cell == "X") != (a == b) for a, row in enumerate(matrix) for b, cell in enumerate(row)):
        raise Unknown("X is not exactly on the diagonal of the matrix")
    columns = header[devices:]
    numa = tuple(_numa_of(row[1 + devices :], columns) for row in rows)
    return Topology(_symmetric([[_links_of(cell) for cell in row] for row in matrix]), numa)


def _is_header(cells: Sequence[str]) -> bool:
    return "X" not in cells and not any(_LINKS.fullmatch(cell) for cell in cells)


def _cells(line: str) -> list[str]:
    parts = line.split("\t") if "\t" in line else re.split(r" {2,}", line)
    return [part.strip() for part in parts if part.strip()]


def _links_of(cell: str) -> int:
    match = _LINKS.fullmatch(cell)
    return int(match[1]) if match else 0


def _symmetric(links: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Two GPUs have the links that both rows say."""
    return tuple(tuple(min(links[a][b], links[b][a]) for b in range(len(links))) for a in range(len(links)))


def _numa_of(cells: Sequence[str], columns: Sequence[str]) -> int | None:
    """The NUMA node; the first of a list or range (``0,2-17`` on GB200, whose GPUs have nodes, too)."""
    if len(cells) != len(columns) or "NUMA Affinity" not in columns:
        return None
    match = re.match(r"\d{1,4}", cells[columns.index("NUMA Affinity")])
    return int(match[0]) if match else None


def islands_of(links: Sequence[Sequence[int]], alone: Iterable[int] = ()) -> list[tuple[int, ...]]:
    """Groups of two or more GPUs, all pairs of which are connected, without those that are ``alone``. The
    largest group first taken, the lowest GPUs where several are as large; in order of their lowest GPU.

    Raises Unknown where the search takes too long.
    """
    left = set(range(len(links))) - set(alone)
    budget, found = [_MOST_STEPS], []
    while left:
        group = _largest_group(links, sorted(left), budget)
        if len(group) < 2:
            break
        found.append(group)
        left -= set(group)
    return sorted(found)


def _largest_group(links: Sequence[Sequence[int]], gpus: list[int], budget: list[int]) -> tuple[int, ...]:
    best: tuple[int, ...] = ()

    def extend(group: tuple[int, ...], candidates: list[int]) -> None:
        nonlocal best
        budget[0] -= 1
        if budget[0] < 0:
            raise Unknown("the NVLink connections are too irregular")
        if len(group) > len(best):
            best = group
        for i, gpu in enumerate(candidates):
            if len(group) + len(candidates) - i <= len(best):
                return
            extend((*group, gpu), [other for other in candidates[i + 1 :] if links[gpu][other]])

    extend((), gpus)
    return best


def labels_of(topology: Topology, devices: Devices) -> dict[str, str]:
    """The labels, without the prefix. Raises Unknown where both sources do not see the same GPUs."""
    count = len(topology.links)
    if len(devices.mig) != count:
        raise Unknown(f"the matrix has {count} GPUs, but the driver lists {len(devices.mig)}")
    alone = {g for g in range(count) if devices.mig[g] or devices.active_links[g] == 0}
    islands = islands_of(topology.links, alone)
    within = [topology.links[a][b] for island in islands for a in island for b in island if a != b]
    labels = {
        "islands": "_".join(map(_items, islands)) or "none",
        "max-island": str(max(map(len, islands), default=1)),
        "fabric": _fabric(topology, devices, islands),
        "gpus": str(count),
    }
    if within:
        labels["links"] = str(min(within))
    if any(node is not None for node in topology.numa):
        labels["numa"] = ".".join("x" if node is None else str(node) for node in topology.numa)
    return {key: value for key, value in labels.items() if len(value) <= LONGEST_VALUE}


def _items(island: Sequence[int]) -> str:
    """``0.1``, ``0-7`` or ``0.1.3-7``: a run of three or more is written as a range."""
    runs: list[list[int]] = []
    for gpu in sorted(island):
        if runs and gpu == runs[-1][-1] + 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ".".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ".".join(map(str, run)) for run in runs)


def _fabric(topology: Topology, devices: Devices, islands: Sequence[Sequence[int]]) -> str:
    """A GPU cannot have direct links to all peers of its island if they add up to more than it has: then the
    links go to a switch."""
    if not islands:
        return "none"
    known = [links for links in devices.active_links if links]
    most = max(known) if known else MOST_LINKS
    for island in islands:
        least = min(topology.links[a][b] for a in island for b in island if a != b)
        if least * (len(island) - 1) > most:
            return "switch"
    return "mesh" if any(len(island) > 2 for island in islands) else "bridge"
