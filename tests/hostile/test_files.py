"""Hostile YAML in requests for an explanation and in ConfigMaps, read by a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from extender.data import CLUSTER
from extender.untrusted.limits import EXPLAIN_BODY
from tests.examples import some
from tests.extender.server.test_run import Process
from tests.hostile.cluster import SAID, usual_pod

MOST_COST = 4
"""CPU seconds that hostile YAML may cost, in multiples of a normal pod of the same size."""


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def pod_with(text: str) -> str:
    return f"kind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - resources: {{}}\nx:\n{text}\n"


USUAL = pod_with("\n".join(f"  l{n}: {'x' * 100}" for n in range(9000))).encode()
TEXTS: dict[str, Callable[[], str]] = {
    "brackets": lambda: "a: " + "[" * 60_000,
    "closed brackets": lambda: "a: " + "[" * 60_000 + "]" * 60_000,
    "braces": lambda: "a: " + "{a: " * 60_000,
    "JSON brackets": lambda: "[" * 500_000,
    "JSON objects": lambda: '{"a":' * 150_000,
    "dashes": lambda: "- " * 60_000,
    "indentation": lambda: "\n".join(" " * n + "a:" for n in range(1400)),
    "questions": lambda: "? " * 60_000,
    "laughs": lambda: laughs(12),
    "laughs in a pod": lambda: pod_with(laughs(9)),
    "aliases": lambda: "a: &a [x]\nb: [" + "*a, " * 16_000 + "]",
    "an alias of itself": lambda: "kind: Pod\nmetadata: &m\n  name: p\n  labels: *m\nspec: {}",
    "merges": lambda: "\n".join(
        ["a0: &a0 {k: v}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 25)]
    ),
    "anchors": lambda: "\n".join(f"- &a{n} x" for n in range(60_000)),
    "tags": lambda: "!!python/object/apply:os.system [exit]",
    "long tags": lambda: "!" + "a" * 500_000 + " x",
    "digits": lambda: "a: " + "9" * 500_000,
    "base 60": lambda: "a: " + "1:" * 100_000 + "1",
    "binary": lambda: "a: 0b" + "1" * 500_000,
    "JSON digits": lambda: '{"kind": "Pod", "metadata": ' + "9" * 500_000 + "}",
    "documents": lambda: "---\nkind: Pod\nmetadata: {name: p}\n" * 20_000,
    "empty documents": lambda: "---\n" * 200_000,
    "many keys": lambda: "\n".join(f"k{n}: v" for n in range(80_000)),
    "many pods": lambda: json.dumps({"kind": "List", "items": [usual_pod(f"p{n}") for n in range(3000)]}),
    "long key": lambda: "? " + "k" * 900_000 + "\n: v",
    "colons": lambda: "a: b: c: " * 50_000,
    "quotes": lambda: '"' * 500_001,
    "escapes": lambda: 'a: "' + "\\x00" * 100_000 + '"',
    "controls": lambda: "\x00\x1b\x7f" * 100_000,
    "percent": lambda: "%YAML 9.9\n" * 50_000,
    "UTF-16": lambda: "\ufeffkind: Pod",
    "surrogates": lambda: '{"kind": "Pod", "metadata": {"name": "\\ud800"}, "spec": {}}',
    "name": lambda: json.dumps(usual_pod("n" * 500_000)),
    "kind": lambda: '{"kind": "' + "k" * 500_000 + '", "metadata": {}}',
    "too much": lambda: " " * (EXPLAIN_BODY + 1),
}


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Process]]:
    """The processes that were started. There is a new one after each that a manifest ended."""
    started: list[Process] = []
    yield started
    for process in started:
        process.end()


@pytest.fixture
def service(processes: list[Process]) -> Iterator[httpx.Client]:
    if not (processes and answers(processes[-1])):
        processes.append(Process("--snapshot", str(CLUSTER)))
        processes[-1].wait_until_ready()
    with httpx.Client(base_url=processes[-1].urls[0], timeout=120) as client:
        yield client


def answers(process: Process) -> bool:
    try:
        return httpx.get(f"{process.urls[0]}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def metric(service: httpx.Client, name: str) -> float:
    lines = service.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


@pytest.mark.parametrize("text", some(TEXTS))
def test_a_manifest_to_be_explained(service: httpx.Client, text: str) -> None:
    seconds, memory = "stowage_process_cpu_seconds_total", "stowage_process_resident_memory_bytes"
    service.post("/debug/explain", content=USUAL)
    before, held = metric(service, seconds), metric(service, memory)
    assert service.post("/debug/explain", content=USUAL).status_code == 200
    cost = max(metric(service, seconds) - before, 0.1)
    before = metric(service, seconds)
    response = service.post("/debug/explain", content=TEXTS[text]().encode(errors="surrogatepass"))
    assert response.status_code in (200, 400, 413)
    assert response.status_code == 200 or len(response.content) <= SAID
    assert metric(service, seconds) - before <= MOST_COST * cost
    assert metric(service, memory) - held < 100 << 20
    assert service.get("/healthz").text == "ok"


READING = """
import resource, sys
from pathlib import Path
from extender.source.snapshot import read
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = read([Path(sys.argv[1])])
print(len(found.pods), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
SNAPSHOTS = {
    "empty objects": ("{}", 0),
    "empty lists": ('{"kind":"Pod","metadata":{"name":"a"},"spec":{"x":[' + "[]," * 2000 + "[]]}}", 1),
    "pods without a kind": ('{"metadata":{"name":"a","labels":{"a":"b"}}}', 0),
}


@pytest.mark.parametrize("kind", SNAPSHOTS)
def test_a_snapshot_takes_little_more_memory_than_what_is_kept(tmp_path: Path, kind: str) -> None:
    """Read as a whole, the file took up to 60 times as much."""
    item, pods = SNAPSHOTS[kind]
    items = ",".join([item] * (1_000_000 // len(item)))
    (tmp_path / "cluster.json").write_text(f'{{"apiVersion":"v1","items":[{items}],"kind":"List"}}')
    command = [sys.executable, "-c", READING, str(tmp_path / "cluster.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, kib = map(int, done.stdout.split())
    assert found == pods
    assert kib < 30 << 10
