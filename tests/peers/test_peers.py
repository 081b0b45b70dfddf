"""What the tests of other systems say, in words of our own, beside what Stowage answers.

Each table beside this file is one system, with the ``source`` of its rows (its repository, version and test).
A row has a ``name``, the cluster (``manifests.py`` has the short forms), the pod that ``waits``, and what the
system answers: ``fits``, all nodes on which the pod can be placed now, ``gets``, the GPUs of HAMi that its
containers get on the only one, or ``evicts``, the pods that make room for it (not those that terminate
already: naming these changes nothing). ``allocates`` is ``fits`` by ``explain``, which says where the claims
of a pod get devices: ``filter`` refuses no node for devices. ``problems``: the nodes and pods that Stowage
cannot read. What stands beside ``rows`` is the same for all of them. Where Stowage answers otherwise,
``ours`` says what, and ``why`` that is a choice. Other keys beside ``rows`` only hold anchors of YAML.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cluster.state import State
from extender.dialects.hami import TO_ALLOCATE
from extender.dialects.per_device import parse_devices
from extender.explain.pod import explain_each
from extender.inventory.gpu_labels import UNKNOWN_MEMORY
from extender.settings import Settings
from extender.source.workloads import parse_templates
from extender.verbs.bind import assign
from tests.examples import some

from ..cases.answers import cluster, filtered, victims
from .manifests import manifests, pods

TABLES = sorted(Path(__file__).parent.glob("*.yaml"))
KEYS = {"name", "source", "nodes", "pods", "budgets", "objects", "waits", "settings", "fits", "evicts"}
KEYS |= {"claims", "allocates", "gets", "problems", "ours", "why"}
ROWS = [
    pytest.param({key: table[key] for key in KEYS & table.keys()} | row, id=f"{path.stem}: {row['name']}")
    for path in TABLES
    for table in [yaml.load(path.read_text(), yaml.CSafeLoader)]
    for row in table["rows"]
]


@pytest.mark.parametrize("row", some(ROWS, 255))
def test_the_answer_is_theirs_or_a_choice(row: dict[str, Any], tmp_path: Path) -> None:
    assert row.keys() <= KEYS
    theirs = {key: sorted(row[key]) for key in ("fits", "gets", "evicts", "allocates") if key in row}
    right = {key: sorted(names) for key, names in row.get("ours", theirs).items()}
    assert right
    assert bool(row.get("why")) == (right != theirs)
    settings = Settings.model_validate({"shortlist": 0} | row.get("settings", {}))
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": manifests(row)}))
    state = cluster(tmp_path / "cluster.json", settings)
    problems = {name for name, text in state.problems.items() if not text.startswith(UNKNOWN_MEMORY)}
    assert problems == set(row.get("problems", ()))
    answers, said = answer(state, row, settings)
    assert {key: answers[key] for key in right} == right, said


def answer(state: State, row: dict[str, Any], settings: Settings) -> tuple[dict[str, list[str]], str]:
    """What Stowage answers, and what it says."""
    (waiting,) = pods("waits", row["waits"])
    pod = parse_templates(json.dumps(waiting), "waits")[0].pod
    result = filtered(state, pod, settings)
    evicted = sorted(
        key.removeprefix("default/") for key in victims(state, pod) if not state.pods[key].deleting
    )
    answers = {"fits": sorted(result.names), "evicts": evicted}
    said = f"{result.error} {result.failed} {result.unresolvable}"
    if "allocates" in row:
        each = explain_each(state, pod, list(state.nodes))
        answers["allocates"] = sorted(one.node for one in each if one.fits)
        said += f" {[(one.node, one.reason) for one in each]}"
    if "gets" in row:
        written = assign(state, pod, *answers["fits"])[TO_ALLOCATE]
        answers["gets"] = sorted(claim.device for claims in parse_devices(written) for claim in claims)
    return answers, said
