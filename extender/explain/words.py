"""Probable mistakes in a pod's labels, annotations, and names of its queue and scheduler; and fields that the
API server would reject, so that the pod fits nowhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from extender.cluster.other_resources import OF_SHARING_SYSTEMS
from extender.cluster.state import State
from extender.dialects import kai, stowage
from extender.dialects.pod_request import (
    ASSIGNMENT_ANNOTATIONS,
    DEVICE_MEMORY,
    REQUEST_ANNOTATIONS,
    REQUEST_LABELS,
)
from extender.dialects.shared_gpus import is_gpu_resource
from extender.k8s.manifest import Pairs
from extender.k8s.objects import Container, Pod
from extender.k8s.quantity import QuantityError, exact, whole
from extender.queues.disruptions import CHECKPOINT_INTERVAL, CHECKPOINTED_AT
from extender.queues.gang_words import GANG, GANG_MIN
from extender.queues.queue import QUEUE_LABEL, RESTARTABLE, SYSTEM_CLASSES
from extender.untrusted.limits import KEY, LISTED_NAMES, quoted, shorten

_DOMAIN = "stowage.dev/"
_ANYWHERE = frozenset({QUEUE_LABEL, GANG, GANG_MIN, RESTARTABLE, CHECKPOINTED_AT, CHECKPOINT_INTERVAL})
"""Accepted as labels and as annotations."""
_OF_PODS = frozenset(
    name for name in (*REQUEST_ANNOTATIONS, *ASSIGNMENT_ANNOTATIONS, *_ANYWHERE) if name.startswith(_DOMAIN)
)
_OTHERS = {"runai-fraction": kai.FRACTION, "runai-gpu-memory": kai.MEMORY}
_NAMED = 4
_BYTES = 1 << 20
_MOST_GIB = 1024
"""More than any GPU has: larger numbers are taken as MiB."""
_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
"""Resources without a domain. Sources of ``admission_problem``, in k8s.io/kubernetes
pkg/apis/core/validation/validation.go: ``validateContainerResourceName`` (no others without a domain) and
``ValidateContainerResourceRequirements`` (an extended resource needs a limit, and its request equals it)."""
_DEFAULT_SCHEDULERS = ("default-scheduler", "stowage")


class Kind(IntEnum):
    """Kind of a hint. The lowest decides why a pod fits nowhere; a ``NOTE`` never does."""

    NEVER = 0
    WORD = 1
    RULE = 2
    NOTE = 3


class Hint(NamedTuple):
    """A sentence, and the correction, if known, as text to paste; ``mended``: the corrected pod."""

    kind: Kind
    text: str
    paste: str = ""
    mended: Pod | None = None


def word_hints(state: State, pod: Pod) -> Iterator[Hint]:
    """Hints about labels and annotations that no component reads, and names that do not exist."""
    yield from islice(_unread(pod), _NAMED)
    yield from _units(pod)
    named = pod.labels.get(QUEUE_LABEL) or pod.annotations.get(QUEUE_LABEL)
    queues = state.rights.queues.by_name
    if named and named not in queues:
        text = f"There is no queue {quoted(named)}{did_you_mean(named, queues)}. Queues: {', '.join(queues)}."
        near = nearest_name(named, queues)
        yield Hint(Kind.WORD, text, *(mend(pod, "labels", {QUEUE_LABEL: near}) if near else ()))
    if is_manifest(pod) and pod.scheduler_name not in _DEFAULT_SCHEDULERS:
        schedulers = {other.scheduler_name for other in state.pods.values()} | {*_DEFAULT_SCHEDULERS}
        if pod.scheduler_name not in schedulers and not pod.node_name:
            near = nearest_name(pod.scheduler_name, schedulers)
            text = f"No other pod has the schedulerName {quoted(pod.scheduler_name)}"
            text += f"{meant(near)}." if near else ": is that scheduler installed?"
            near = near or "stowage"
            yield Hint(Kind.WORD, text, f"schedulerName: {near}", replace(pod, scheduler_name=near))
    classes, runtimes = state.rights.queues.classes.by_name, state.admission.runtime_classes
    yield from _no_class(
        pod.priority_class, "PriorityClass", classes, lambda near: replace(pod, priority_class=near)
    )
    yield from _no_class(
        pod.runtime_class, "RuntimeClass", runtimes, lambda near: replace(pod, runtime_class=near)
    )


def _no_class(name: str, kind: str, known: Collection[str], mended: Callable[[str], Pod]) -> Iterator[Hint]:
    """A class that does not exist, if others of its kind are known."""
    if name and known and name not in (*known, *SYSTEM_CLASSES):
        near = nearest_name(name, known)
        text = f"There is no {kind} {quoted(name)}: the API server rejects the pod{meant(near)}."
        paste = f"{kind[0].lower()}{kind[1:]}Name: {near}" if near else ""
        yield Hint(Kind.NEVER, text, paste, mended(near) if near else None)


def written_as(section: str, entries: Mapping[str, str]) -> str:
    """These entries as a map in a manifest."""
    pairs = ", ".join(f'{key}: "{shorten(value, KEY)}"' for key, value in entries.items())
    return f"{section}: {{{pairs}}}"


def mend(pod: Pod, section: str, entries: Mapping[str, str], instead_of: str = "") -> tuple[str, Pod]:
    """The line to paste into ``labels``, ``annotations`` or ``limits``, and the pod with it and without the
    entry ``instead_of``."""
    paste = written_as(section, entries) if entries else f"leave out {shorten(instead_of, KEY)}"
    if section == "limits":
        spec = pod.spec
        containers = tuple(_with_limits(c, entries, instead_of) for c in spec.containers)
        init = tuple(_with_limits(container, entries, instead_of) for container in spec.init_containers)
        return paste, replace(pod, spec=replace(spec, containers=containers, init_containers=init))
    labels = {name: value for name, value in pod.labels.items() if name != instead_of}
    annotations = {name: value for name, value in pod.annotations.items() if name != instead_of}
    if section == "labels":
        return paste, replace(pod, labels={**labels, **entries}, annotations=annotations)
    return paste, replace(pod, labels=labels, annotations={**annotations, **entries})


def asking_instead(pod: Pod, resources: Collection[str]) -> Iterator[tuple[str, Pod]]:
    """The line that requests one of these resources, or a whole GPU of Stowage's nodes, and the pod with this
    request instead of its own."""
    labels = {name: value for name, value in pod.labels.items() if name not in REQUEST_LABELS}
    annotations = {k: v for k, v in pod.annotations.items() if k not in REQUEST_ANNOTATIONS}
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
            yield written_as("limits", {name: "1"}), mended
    spec, whole = replace(pod.spec, containers=(first, *others)), {stowage.COMPUTE: "100%"}
    mended = replace(pod, spec=spec, labels=labels, annotations={**annotations, **whole})
    yield written_as("annotations", whole), mended


def _without_gpus(pairs: Pairs) -> Pairs:
    return tuple((k, v) for k, v in pairs if not is_gpu_resource(k) and k not in OF_SHARING_SYSTEMS)


def _with_limits(container: Container, entries: Mapping[str, str], instead_of: str) -> Container:
    if instead_of not in dict(container.requests):
        return container
    rest = (
        {name: value for name, value in pairs if name != instead_of}
        for pairs in (container.requests, container.limits)
    )
    requests, limits = (tuple({**kept, **entries}.items()) for kept in rest)
    return replace(container, requests=requests, limits=limits)


def _unread(pod: Pod) -> Iterator[Hint]:
    """Labels and annotations that resemble those of a request, but that no component reads."""
    for what, entries, elsewhere in (
        ("annotation", pod.annotations, REQUEST_LABELS - REQUEST_ANNOTATIONS),
        ("label", pod.labels, REQUEST_ANNOTATIONS - REQUEST_LABELS - _ANYWHERE),
    ):
        for name, value in entries.items():
            if name in elsewhere:
                other = "a label" if what == "annotation" else "an annotation"
                text = f"No component reads {name} in {what}s: write it as {other}."
                yield Hint(Kind.WORD, text, *mend(pod, f"{other.split()[1]}s", {name: value}, name))
            elif name.startswith(_DOMAIN) and name not in _OF_PODS:
                near = nearest_name(name, _OF_PODS)
                text = f"Stowage has no {what} {quoted(name)}{did_you_mean(name, _OF_PODS)}."
                yield Hint(Kind.WORD, text, *mend(pod, f"{what}s", {near: value} if near else {}, name))
            elif what == "annotation" and (known := _OTHERS.get(name) or _near_request(name)):
                text = f"No component reads the annotation {quoted(name)}{meant(known)}."
                yield Hint(Kind.WORD, text, *mend(pod, "annotations", {known: value}, name))


def _near_request(name: str) -> str:
    known = REQUEST_ANNOTATIONS | ASSIGNMENT_ANNOTATIONS
    if name in known or len(name) > LISTED_NAMES:
        return ""
    return nearest_name(name, REQUEST_ANNOTATIONS, cutoff=0.9)


def _units(pod: Pod) -> Iterator[Hint]:
    """GPU memory in the unit of another system."""
    for name in (stowage.MEMORY, DEVICE_MEMORY):
        text = pod.annotations.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) < _BYTES:
            unit = "Gi" if int(text) <= _MOST_GIB else "Mi"
            said = f"{name}: {quoted(text)} is in bytes. For {text} {unit}B write {text}{unit}."
            yield Hint(Kind.WORD, said, *mend(pod, "annotations", {name: f"{text}{unit}"}))
    text = pod.annotations.get(kai.MEMORY, "")
    try:
        mib = 0 if not text or text.isdecimal() else whole(text) >> 20
    except QuantityError:
        mib = 0
    if mib:
        said = f"{kai.MEMORY} counts MiB: for {text} write {mib}."
        yield Hint(Kind.WORD, said, *mend(pod, "annotations", {kai.MEMORY: str(mib)}))


def did_you_mean(name: str, known: Collection[str]) -> str:
    """`` (did you mean NAME?)`` with the most similar name, "" if none is similar."""
    return meant(nearest_name(name, known))


def meant(near: str) -> str:
    """`` (did you mean NAME?)``, "" for no name."""
    return f" (did you mean {near}?)" if near else ""


def nearest_name(name: str, known: Collection[str], cutoff: float = 0.75) -> str:
    """The most similar of the known names, "" if none is similar; preferably with the most words in common:
    for ``NVIDIA-A100-80GB-PCI`` an A100, although an H100 differs in fewer letters."""
    candidates = [shorten(text, 256) for text in islice(known, 4 * LISTED_NAMES)]
    longer = [candidate for candidate in candidates if name and name.lower() in candidate.lower()]
    near = longer or get_close_matches(shorten(name, 256), candidates, n=8, cutoff=cutoff)
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


def admission_problem(pod: Pod) -> str:
    """Why the API server would reject the pod, "" for no known reason."""
    found = (problem for container in pod.spec.all_containers for problem in _problems(container))
    return next(found, "")


def _problems(container: Container) -> Iterator[str]:
    limits = dict(container.limits)
    for name, request in container.requests:
        shown = shorten(name, KEY)
        if "/" not in name:
            if name not in _STANDARD and not name.startswith("hugepages-"):
                near = meant("nvidia.com/gpu" if "gpu" in name.lower() else "")
                yield f"the API server rejects it: {quoted(name)} is not a Kubernetes resource{near}"
        elif "kubernetes.io/" not in name and name not in limits:
            limit = written_as("limits", {name: request})
            yield f"the API server rejects it: {shown} has a request but no limit; write {limit}"
        elif "kubernetes.io/" not in name and not _equal(request, limits[name]):
            amounts = f"the request of {shown} is {quoted(request)}, its limit {quoted(limits[name])}"
            yield f"the API server rejects it: {amounts}; both must be equal"


def _equal(first: str, other: str) -> bool:
    try:
        return first == other or exact(first) == exact(other)
    except QuantityError:
        return True  # the error of the request reports it
