"""Jobs of published traces: GPUs, submission time, and run time.

Helios: ``cluster_log.csv`` (S-Lab-System-Group/HeliosData, README.md). Philly: ``cluster_job_log``, JSON
(msr-fiddle/philly-traces, README.md); a job's GPUs are those of its last attempt, its run time the sum over
all attempts. Any other CSV has the columns gpus, submitted and duration, in seconds.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Job = tuple[int, float, float]
"""GPUs, submission time, duration; in seconds."""


def read_jobs(path: Path) -> list[Job]:
    """The jobs with a GPU that ran, in order of submission."""
    with path.open(newline="", encoding="utf-8") as file:
        is_json = file.read(1) == "["
        file.seek(0)
        jobs = map(_of_philly, json.load(file)) if is_json else map(_of_csv, csv.DictReader(file))
        return sorted((job for job in jobs if job[0] > 0 and job[2] > 0), key=lambda job: job[1])


def _of_csv(row: Mapping[str, str]) -> Job:
    if "gpu_num" in row:
        return int(row["gpu_num"]), _seconds(row["submit_time"]), float(row["duration"])
    return int(row["gpus"]), float(row["submitted"]), float(row["duration"])


def _of_philly(job: Mapping[str, Any]) -> Job:
    ran = list(_runtimes(job["attempts"]))
    nodes = job["attempts"][-1]["detail"] if job["attempts"] else ()
    return sum(len(node["gpus"]) for node in nodes), _seconds(job["submitted_time"]), sum(ran)


def _runtimes(attempts: list[dict[str, Any]]) -> Iterator[float]:
    """Run times of the attempts with a start and an end; the log lacks some."""
    for one in attempts:
        if _is_time(one["start_time"]) and _is_time(one["end_time"]):
            yield _seconds(one["end_time"]) - _seconds(one["start_time"])


def _is_time(text: str | None) -> bool:
    return text not in (None, "None", "")


def _seconds(text: str) -> float:
    """Parse a local time without a time zone. The end of daylight saving time shifts it by an hour."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
