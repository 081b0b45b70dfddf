"""``stowage explain`` as the running Stowage answers it, with its learnt demand and its last decisions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from extender.untrusted.visible import visible

if TYPE_CHECKING:
    from extender.explain.inspector import PodAnswer, PodReport
    from extender.source.stowage_service import StowageService


def asked(args: argparse.Namespace, manifest: str | None, stowage: StowageService) -> str:
    """The answer in the format asked for; ``manifest`` is None for the name of a pod.

    Raises ``NotAsked``, and ``ValueError`` if Stowage refuses the question.
    """
    from extender.cli.precompile import loading_kernels
    from extender.source.stowage_service import NotAsked

    nodes = [("node", name) for name in args.node or ()]
    try:
        if manifest is not None:
            every = [("every", "true")] if args.all else []
            found = stowage.post("/debug/explain/pods", manifest, [*nodes, *every])["answers"]
            with loading_kernels():
                return _shown(args, _answers(found))
        key = _key(args.pod, stowage)
        path = f"/debug/pods/{quote(key)}"
        if args.all or nodes:
            found = [stowage.get(f"{path}/nodes", nodes)]
            with loading_kernels():
                return _shown(args, _answers(found))
        report = stowage.get(path, [("explained", "true")])
        with loading_kernels():
            return _reported(args, _report(report), report)
    except (ValidationError, KeyError, TypeError):
        raise NotAsked(f"{stowage.name} is of another version, and its answer cannot be read") from None


def _key(name: str, stowage: StowageService) -> str:
    """``namespace/name`` of a pod. Raises ``ValueError`` if a name alone is not that of exactly one."""
    if "/" in name:
        return name
    keys: Sequence[str] = stowage.get("/debug/pods", [("name", name)])["pods"]
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise ValueError(f"{len(keys)} pods are named {name}: write namespace/name")
    raise ValueError(f"{name} is not a file, and the cluster has no such pod (namespace/name)")


def _answers(found: object) -> list[PodAnswer]:
    from extender.explain.inspector import PodAnswer

    return TypeAdapter(list[PodAnswer]).validate_python(found)


def _report(found: object) -> PodReport:
    from extender.explain.inspector import PodReport

    return TypeAdapter(PodReport).validate_python(found)


def _shown(args: argparse.Namespace, answers: Sequence[PodAnswer]) -> str:
    from pydantic_core import to_json

    from extender.cli.explain_text import render, render_nodes

    if args.output == "json":
        values: list[Any] = [one.explanation if one.nodes is None else one.nodes for one in answers]
        return to_json(values[0] if len(values) == 1 else values, indent=2).decode()
    texts = []
    for one in answers:
        if one.explanation is not None:
            text = render(one.explanation, verbose=args.verbose)
        else:
            text = render_nodes(one.pod, one.nodes or (), verbose=args.verbose)
        texts.append(f"{visible(one.workload)}:\n{text}" if one.workload else text)
    return "\n\n".join(texts)


def _reported(args: argparse.Namespace, report: PodReport, found: dict[str, Any]) -> str:
    """A pod of the cluster: where it fits now, and what the service has decided about it."""
    from pydantic_core import to_json

    from extender.cli.explain_text import render, render_decisions

    if args.output == "json":
        more = {key: found[key] for key in ("note", "decisions", "replica")}
        return to_json(
            {**(found["now"] or {"pod": report.pod, "node": report.node}), **more}, indent=2
        ).decode()
    text = render(report.now, verbose=args.verbose) if report.now else f"{report.pod} runs on {report.node}"
    decisions = render_decisions(report.decisions, report.replica.name, report.note)
    return "\n".join(filter(None, (text, decisions)))
