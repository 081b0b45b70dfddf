"""A pod against each node by name: whether it fits there, and if not, what the node lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from extender.cluster.other_resources import asked_by, lacking_on
from extender.cluster.state import State
from extender.cluster.unoffered import not_offered, unoffered
from extender.dialects.pod_request import request_of
from extender.explain.advice import advice_on
from extender.explain.needs import missing_needs
from extender.explain.options import option_on
from extender.explain.pod import Candidates
from extender.k8s.objects import Pod
from extender.protocol.node_names import NodeNames
from extender.untrusted.limits import LISTED_NAMES, shorten
from extender.verbs.evaluate import evaluate
from extender.verbs.gang_fit import with_gang_check
from packing.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One node. ``reason`` is "fits" or why not, ``lacks`` what it has too little of, in sentences.

    ``cost`` (GPUs) and its ``terms`` mean something only where it fits.
    """

    node: str
    fits: bool
    reason: str
    lacks: tuple[str, ...] = ()
    advice: str = ""
    cost: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)

    def order(self) -> tuple[bool, float, str]:
        """Those that fit first, the cheapest first."""
        return not self.fits, self.cost, self.node


def explain_each(state: State, pod: Pod, nodes: Iterable[str]) -> list[NodeAnswer]:
    """An answer for each of these nodes, those that fit first, cheapest first.

    Raises ``RequestError`` where the pod's request cannot be read.
    """
    return sorted(_answers(state, pod, list(nodes)), key=NodeAnswer.order)


def _answers(state: State, pod: Pod, nodes: list[str]) -> Iterator[NodeAnswer]:
    request, candidates = request_of(pod), Candidates(state, pod)
    evaluation = with_gang_check(state, evaluate(state, pod, request, NodeNames.of(nodes)))
    with state.fleet_view_for(pod) as fleet:
        for index, name in enumerate(nodes):
            row, reason = int(evaluation.rows[index]), Reason(int(evaluation.codes[index]))
            node = state.nodes.get(name)
            forecast = evaluation.forecasts[index] if evaluation.forecasts else None
            if node is not None and (rejection := candidates.rejection(node)):
                yield NodeAnswer(name, fits=False, reason=rejection)
            elif reason is not Reason.FITS:
                lacks = (
                    *(need.text for need in missing_needs(fleet, row, request)),
                    *_unoffered(state, name),
                )
                advice = advice_on(state, fleet, pod, request, name, reason)
                yield NodeAnswer(name, fits=False, reason=reason.text, lacks=lacks, advice=advice)
            elif forecast and (forecast.problem or forecast.refused):
                text = forecast.problem or "node does not have the devices that the pod's claims ask for"
                yield NodeAnswer(name, fits=False, reason=shorten(text))
            elif node is not None and (used_up := tuple(lacking_on(state, node, asked_by(pod)))):
                lacks = tuple(one.text for one in used_up[:LISTED_NAMES])
                yield NodeAnswer(name, fits=False, reason=used_up[0].reason, lacks=lacks)
            else:
                option = option_on(state, evaluation, index, name, None)
                yield NodeAnswer(name, fits=True, reason=reason.text, cost=option.cost, terms=option.terms)


def _unoffered(state: State, name: str) -> Iterator[str]:
    """What is the matter with GPUs that the node does not offer."""
    found = unoffered(state, name)
    if text := found.note if found else not_offered(state, name):
        yield shorten(text)
