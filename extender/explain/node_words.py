"""Which of a pod's demands no node meets: node selector, required node affinity, taints, GPU models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from extender.cluster.state import State
from extender.explain.words import did_you_mean
from extender.k8s.affinity import Taint, tolerated
from extender.k8s.objects import Pod
from extender.untrusted.limits import KEY, quoted, shorten
from packing.model.request import Request

_NAMED = 4


def node_hints(state: State, pod: Pod, request: Request | None) -> Iterator[str]:
    """Sentences about demands that no node meets, each with what the nodes have."""
    yield from islice(_labels(state, pod), _NAMED)
    yield from _taints(state, pod)
    if request and (request.products.allow or request.products.deny):
        yield from _models(state, request)


def _labels(state: State, pod: Pod) -> Iterator[str]:
    """Labels that the selector or the only term of the affinity asks for, and that no node has."""
    terms = pod.scheduling_constraints.node_affinity or ()
    required = terms[0].labels if len(terms) == 1 else ()
    asked: list[tuple[str, tuple[str, ...]]] = [(key, (value,)) for key, value in pod.spec.node_selector]
    asked += [(one.key, one.values) for one in required if one.operator == "In"]
    for key, values in asked:
        known = Counter(shorten(node.labels[key], KEY) for node in state.nodes.values() if key in node.labels)
        if not known:
            keys = dict.fromkeys(chain.from_iterable(node.labels for node in state.nodes.values()))
            yield f"No node has a label {shorten(key, KEY)}{did_you_mean(key, keys)}."
        elif not any(shorten(value, KEY) in known for value in values):
            near = did_you_mean(values[0], known) if values else ""
            wanted = " or ".join(map(quoted, values[:_NAMED]))
            yield f"No node has the label {shorten(key, KEY)}={wanted}{near}. Nodes have {_listed(known)}."


def _taints(state: State, pod: Pod) -> Iterator[str]:
    """The taints of GPU nodes that the pod does not tolerate, if it tolerates those of no GPU node."""
    refused: Counter[str] = Counter()
    for node in state.nodes.values():
        if not _has_gpu(state, node.name):
            continue
        taints = [taint for taint in node.taints if not _is_tolerated(taint, pod)]
        if not taints:
            return
        refused.update(_written(taint) for taint in taints)
    if refused:
        yield f"It tolerates the taints of no node with GPUs. It lacks tolerations of {_listed(refused)}."


def _is_tolerated(taint: Taint, pod: Pod) -> bool:
    return tolerated((taint,), pod.scheduling_constraints.tolerations)


def _written(taint: Taint) -> str:
    """As kubectl writes it."""
    value = f"={taint.value}" if taint.value else ""
    return shorten(f"{taint.key}{value}:{taint.effect}", KEY)


def _has_gpu(state: State, node: str) -> bool:
    row = state.fleet.rows.get(node)
    spec = None if row is None else state.fleet.specs[row]
    return spec is not None and bool(spec.gpus)


def _models(state: State, request: Request) -> Iterator[str]:
    products = Counter(spec.product or spec.model or "" for spec in state.fleet.specs if spec and spec.gpus)
    products.pop("", None)
    if products and not any(request.products.permits(name) for name in products):
        yield f"No node has a GPU model that the pod allows. Nodes have {_listed(products)}."


def _listed(counts: Counter[str]) -> str:
    """The most frequent names, with numbers of nodes."""
    shown = ", ".join(f"{shorten(name, KEY)} ({nodes})" for name, nodes in counts.most_common(_NAMED))
    more = len(counts) - _NAMED
    return shown + (f" and {more} more" if more > 0 else "")
