"""Findings and fixes as data: what is true of a pod, and what changes it; and corrections of a pod: the most
similar known names, and lines to paste."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from extender.cluster.other_resources import OF_SHARING_SYSTEMS
from extender.dialects import stowage
from extender.dialects.pod_request import REQUEST_LABELS, is_request
from extender.dialects.shared_gpus import is_gpu_resource
from extender.explain.answers import Refusal, Verdict
from extender.explain.words import Said, Word
from extender.k8s.manifest import Pairs
from extender.k8s.objects import Container, Node, Pod
from extender.untrusted.limits import KEY, LISTED_NAMES, quoted, shorten


@dataclass(frozen=True, slots=True)
class Change:
    """``pod``: with another template, which the members of its gang get, too; None for the same. ``nodes``:
    as they would be, by their names now. ``gone``: pods that leave. ``among``: the nodes that it concerns."""

    pod: Pod | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    gone: tuple[Pod, ...] = ()
    among: Collection[str] = ()


class Fix(NamedTuple):
    """A change, as a line to paste or a command. ``pod``: the pod after it, None if it changes something
    else; ``change``: after which the pod must fit, None if that is not promised, or was found by trying.
    ``then``: what it achieves; ``later``: it comes after the first fix of the list."""

    said: Said
    pod: Pod | None = None
    change: Change | None = None
    then: Said | None = None
    later: bool = False

    @property
    def text(self) -> str:
        line = f"{self.said}{self.then or ''}"
        return str(Word.NEXT(fix=line)) if self.later else line


class Rank(IntEnum):
    """How much a finding decides. The lowest decides why a pod fits nowhere; a ``NOTE`` never does. ``NODES``
    is what their evaluation says."""

    NEVER = 0
    WORD = 1
    RULE = 2
    NOTE = 3
    NODES = 4


class Finding(NamedTuple):
    """What is true of a pod: a clause, with ``more`` sentences on it, and its fixes, the cheapest first.
    ``refusal``: of the nearest node, where that decides."""

    said: Said
    rank: Rank = Rank.NOTE
    more: Said | None = None
    fixes: tuple[Fix, ...] = ()
    refusal: Refusal | None = None

    @property
    def text(self) -> str:
        if self.rank is Rank.NODES:
            return str(self.said)
        return f"{self.said}. {self.more}" if self.more else f"{self.said}."

    @property
    def lacks(self) -> str:
        """Missing resources on the nearest node."""
        near = self.refusal
        if near is None or not near.lacks:
            return ""
        return str(Word.NEAREST(node=near.nearest, needs="; ".join(need.text for need in near.lacks)))

    def verdict(self) -> Verdict:
        """As shown."""
        near, kind = self.refusal, self.said.word.name
        return Verdict(
            why=self.text,
            lacks=self.lacks,
            ways=tuple(fix.text for fix in self.fixes),
            nearest=near.nearest if near and near.lacks else "",
            kind=near.kind if near and self.said.word is Word.REFUSED else kind,
            fixes=tuple(fix.said.word.name for fix in self.fixes),
        )


def written_as(section: str, entries: Mapping[str, str]) -> str:
    """These entries as a map in a manifest."""
    pairs = ", ".join(f'{key}: "{shorten(value, KEY)}"' for key, value in entries.items())
    return f"{section}: {{{pairs}}}"


def writing(section: str, entries: Mapping[str, str]) -> Said:
    """The line to paste."""
    return Word.WRITE(line=written_as(section, entries))


def mend(pod: Pod, section: str, entries: Mapping[str, str], instead_of: str = "") -> Fix:
    """The entries in ``labels``, ``annotations`` or ``limits``, without the entry ``instead_of``."""
    said = writing(section, entries) if entries else Word.LEAVE_OUT(what=shorten(instead_of, KEY))
    if section == "limits":
        return Fix(said, requesting(pod, entries, instead_of))
    labels = {name: value for name, value in pod.labels.items() if name != instead_of}
    annotations = {name: value for name, value in pod.annotations.items() if name != instead_of}
    if section == "labels":
        return Fix(said, replace(pod, labels={**labels, **entries}, annotations=annotations))
    return Fix(said, replace(pod, labels=labels, annotations={**annotations, **entries}))


def asking_instead(pod: Pod, resources: Collection[str]) -> Iterator[Fix]:
    """Requests for one of these resources, or a whole GPU of Stowage's nodes, instead of the pod's own."""
    labels = {name: value for name, value in pod.labels.items() if name not in REQUEST_LABELS}
    annotations = {k: v for k, v in pod.annotations.items() if not is_request(k)}
    first, *others = (
        replace(c, requests=_without_gpus(c.requests), limits=_without_gpus(c.limits))
        for c in pod.spec.containers
    )
    for name in resources:
        asks = ((name, "1"),)
        requests, limits = (tuple(sorted(pairs + asks)) for pairs in (first.requests, first.limits))
        asking = replace(first, requests=requests, limits=limits)
        spec = replace(pod.spec, containers=(asking, *others))
        if spec != pod.spec or annotations != pod.annotations:
            mended = replace(pod, spec=spec, labels=labels, annotations=annotations)
            yield Fix(writing("limits", {name: "1"}), mended)
    spec, whole = replace(pod.spec, containers=(first, *others)), {stowage.COMPUTE: "100%"}
    mended = replace(pod, spec=spec, labels=labels, annotations={**annotations, **whole})
    yield Fix(writing("annotations", whole), mended)


def _without_gpus(pairs: Pairs) -> Pairs:
    return tuple((k, v) for k, v in pairs if not is_gpu_resource(k) and k not in OF_SHARING_SYSTEMS)


def requesting(pod: Pod, resources: Mapping[str, str], instead_of: str) -> Pod:
    """The pod, with these resources in each container that requests the resource ``instead_of``."""

    def changed(container: Container) -> Container:
        if instead_of not in dict(container.requests):
            return container
        both = ({**dict(pairs), **resources} for pairs in (container.requests, container.limits))
        kept = [
            [pair for pair in all.items() if pair[0] != instead_of or pair[0] in resources] for all in both
        ]
        requests, limits = (tuple(sorted(pairs)) for pairs in kept)
        return replace(container, requests=requests, limits=limits)

    return replace(pod, spec=pod.spec.with_containers(changed))


def no_such(
    word: Word,
    name: str,
    known: Collection[str],
    field: str,
    corrected: Callable[[str], Pod] | None = None,
    *,
    otherwise: str = "",
    **values: object,
) -> Finding:
    """A name in a ``field`` that is not known, so that the pod never starts, with the most similar name, or
    else the text ``otherwise``. ``corrected``: the pod with another name, if it has the field itself."""
    near = nearest_name(name, known)
    said = word(name=quoted(name), meant=meant(near) or otherwise, **values)
    fix = Fix(Word.WRITE(line=f"{field}: {near}"), corrected(near) if corrected else None)
    return Finding(said, Rank.NEVER, None, (fix,) if near else ())


def meant(near: str) -> str:
    """`` (did you mean NAME?)``, "" for no name."""
    return str(Word.MEANT(near=near)) if near else ""


def nearest_name(name: str, known: Collection[str], cutoff: float = 0.75) -> str:
    """The most similar of the known names, "" if none is similar; preferably with the most words in common:
    for ``NVIDIA-A100-80GB-PCI`` an A100, although an H100 differs in fewer letters."""
    candidates = [shorten(text, 256) for text in islice(known, 4 * LISTED_NAMES)]
    longer = [candidate for candidate in candidates if name and name.lower() in candidate.lower()]
    begun = [candidate for candidate in longer if candidate.lower().startswith(name.lower())]
    near = begun or get_close_matches(shorten(name, 256), candidates, n=8, cutoff=cutoff) or longer
    words = _words(name)
    return max(near, key=lambda candidate: len(words & _words(candidate)), default="")


def nearest_key(key: str, known: Collection[str]) -> str:
    """The most similar label key, "" if none is similar: by the part after the domain, since the domain does
    not carry the meaning. In another domain this part must be equal."""
    domain, _, name = shorten(key, KEY).rpartition("/")
    parts = (label.rpartition("/") for label in islice(known, 4 * LISTED_NAMES))
    names = {last: f"{of}{slash}{last}" for of, slash, last in parts if of == domain or last == name}
    return names.get(nearest_name(name, [c for c in names if name not in c or name == c]), "")


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", shorten(name, 256).lower()))


def is_manifest(pod: Pod) -> bool:
    """Whether the pod comes from a file and has not been created."""
    return not pod.uid and pod.phase == "Pending"
