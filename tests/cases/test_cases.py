"""Each folder beside this file is a situation that somebody reported, and ``right.yaml`` what is right.

``cluster.json`` is a snapshot (``kubectl get ... -o json``), and ``pod.json`` the pod that waits, if it is
not in the snapshot. All keys of ``right.yaml`` but ``why`` and ``source`` are optional:

- ``fits``: all nodes on which the pod fits, for ``filter`` and for ``stowage explain --all``;
- ``unknown``: all nodes of which ``explain`` cannot know whether the pod fits;
- ``refused``: by node, words of the reason;
- ``explain``, ``top``: words of these commands' output; ``not_in_explain``, ``not_in_top``: words that are
  not there;
- ``problems``, ``shown_problems``: words of the state's problems, and of ``/debug/problems``, by the node or
  pod that they are about;
- ``evicts``: the victims that ``preempt`` names if kube-scheduler proposes all pods of lower priority;
  ``[]`` is nobody;
- ``drains``: the nodes that ``stowage plan drain`` lets go, and ``stay``: words of why others stay;
- ``stranded``: by kind, the GPUs that the census counts as stranded;
- ``layout_known``: the nodes of which the MIG manager's layout is used;
- ``settings``, and ``pod`` (NAMESPACE/NAME) where the pod is in the snapshot.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cli.main import main
from extender.cluster.census import CensusTaker
from extender.cluster.state import State
from extender.explain.problems import Surroundings, problems_of
from extender.k8s.objects import Pod
from extender.settings import Settings
from extender.source.workloads import parse_templates

from ..expected import check_words
from .answers import filtered, victims
from .test_one_verdict import case, check_agreement, waiting
from .test_ways_out import check_fixes

RIGHT = "right.yaml"
CASES = sorted(path.parent for path in Path(__file__).parent.glob(f"*/{RIGHT}"))
KEYS = {"why", "source", "fits", "refused", "explain", "not_in_explain", "top", "not_in_top", "problems"}
KEYS |= {"stranded", "unknown"}
KEYS |= {"shown_problems", "evicts", "drains", "stay", "layout_known", "settings", "pod"}
WIDE = ("-o", "wide")


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_the_answer_is_right(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    right = yaml.load((folder / RIGHT).read_text(), yaml.CSafeLoader)
    assert right["why"]
    assert right["source"]
    assert right.keys() <= KEYS
    state, settings = case(folder)
    check_fixes(lambda: (again := case(folder)[0], waiting(folder, again)), state, waiting(folder, state))
    pod = waiting_pod(folder, right, state)
    if pod is not None:
        check_verbs(state, pod, right, settings)
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(right.get("settings", {})))
    check_texts(folder, right, tmp_path / "settings.yaml", capsys)
    for name, words in right.get("problems", {}).items():
        check_words(folder / RIGHT, words, state.problems.get(name, ""))
    if "shown_problems" in right:
        texts = {
            one.about: one.text
            for one in problems_of(state, settings, Surroundings({}, {}, ""), 100).problems
        }
        for name, words in right["shown_problems"].items():
            check_words(folder / RIGHT, words, texts.get(name, ""))
    for kind, gpus in right.get("stranded", {}).items():
        fleet = asyncio.run(CensusTaker(state).take()).fleet
        assert getattr(fleet, f"stranded_{kind}") == pytest.approx(gpus), fleet
    if "layout_known" in right:
        known = sorted(name for name, sources in state.nodes.sources.items() if sources.layout)
        assert known == sorted(right["layout_known"])
    check_agreement(state, settings, waiting(folder, state))


def waiting_pod(folder: Path, right: dict[str, Any], state: State) -> Pod | None:
    if (folder / "pod.json").exists():
        written = parse_templates((folder / "pod.json").read_text(), "pod.json")[0].pod
        return state.admission.as_created(written)[0]
    return state.pods[right["pod"]] if "pod" in right else None


def check_verbs(state: State, pod: Pod, right: dict[str, Any], settings: Settings) -> None:
    if "fits" in right:
        result = filtered(state, pod, settings)
        said = result.error, result.failed, result.unresolvable
        assert sorted(result.names) == sorted(right["fits"]), said
    if "evicts" in right:
        assert sorted(victims(state, pod)) == sorted(right["evicts"])


def check_texts(
    folder: Path, right: dict[str, Any], settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = ["--snapshot", str(folder / "cluster.json")]
    pod = right.get("pod") or str(folder / "pod.json")
    explain = ["explain", *snapshot, "--config", str(settings), pod]
    if {"fits", "refused", "unknown"} & right.keys():
        check_nodes(folder, json.loads(printed([*explain, "--all", "--output", "json"], capsys)), right)
    if {"explain", "not_in_explain"} & right.keys():
        said = printed([*explain, "--all", *WIDE], capsys) + printed([*explain, *WIDE], capsys)
        check_said(folder, said, right, "explain")
    if {"top", "not_in_top"} & right.keys():
        check_said(folder, printed(["top", *snapshot, *WIDE], capsys), right, "top")
    if "drains" in right:
        check_drain(folder, printed(["plan", "drain", *snapshot, "-o", "json"], capsys), right)


def check_drain(folder: Path, answer: str, right: dict[str, Any]) -> None:
    tables = json.loads(answer)["tables"]
    assert sorted(row["node"] for row in tables["order"]) == sorted(right["drains"]), tables
    why = {row["node"]: row["why"] for row in tables["stays"]}
    for name, words in right.get("stay", {}).items():
        check_words(folder / RIGHT, words, why[name])


def check_nodes(folder: Path, answers: list[dict[str, Any]], right: dict[str, Any]) -> None:
    if "fits" in right:
        assert sorted(one["node"] for one in answers if one["fits"]) == sorted(right["fits"]), answers
    if "unknown" in right:
        assert sorted(one["node"] for one in answers if one["fits"] is None) == sorted(right["unknown"])
    by_name = {one["node"]: one for one in answers}
    for name, words in right.get("refused", {}).items():
        one = by_name[name]
        check_words(folder / RIGHT, words, "; ".join([one["reason"], *one["lacks"], one["advice"]]))


def printed(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = main(command)
    out, err = capsys.readouterr()
    return out + err if code else out


def check_said(folder: Path, text: str, right: dict[str, Any], command: str) -> None:
    for words in right.get(command, []):
        check_words(folder / RIGHT, words, text)
    for words in right.get(f"not_in_{command}", []):
        assert words not in text, text
