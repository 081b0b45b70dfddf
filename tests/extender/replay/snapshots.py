"""The replay of a snapshot, as the command line runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from extender.replay.repack import replay_cluster
from extender.source.snapshot import SnapshotSource, read


def replay_snapshot(paths: Sequence[Path], *rest: Any, **named: Any) -> Iterator[dict[str, Any]]:
    name = paths[0].stem
    return replay_cluster(SnapshotSource(read(paths), name), name, *rest, **named)
