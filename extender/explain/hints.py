"""Probable mistakes in a pod: names, labels and annotations that no component reads, a resource, label or
model that no node has, an amount in the wrong unit, fields that the API server rejects, a pod that
kube-scheduler will place without calling Stowage. These are independent of single nodes; and the pod's gates
and gang in words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import chain, islice

from extender.cluster.admission import extended_resources
from extender.cluster.other_resources import OF_SHARING_SYSTEMS, wants_devices
from extender.cluster.state import State
from extender.cluster.unoffered import unoffered_counts
from extender.dialects import kai, koordinator, pod_request, stowage
from extender.dialects.dialect import is_named
from extender.dialects.pod_request import (
    ASSIGNMENT_ANNOTATIONS,
    DEVICE_MEMORY,
    REQUEST_ANNOTATIONS,
    REQUEST_LABELS,
    is_assignment,
    is_request,
    system_name,
)
from extender.dialects.shared_gpus import MIG_PREFIX, VENDORS, is_gpu_resource
from extender.explain.claim_hints import claim_hints
from extender.explain.fixes import (
    Finding,
    Fix,
    Rank,
    is_manifest,
    meant,
    mend,
    nearest_key,
    nearest_name,
    no_such,
    writing,
    written_as,
)
from extender.explain.needs import uncounted_resources
from extender.explain.words import GATES, Said, Word
from extender.inventory.mig_layouts import placement_on
from extender.inventory.node_inventory import STOWAGE_SHARING
from extender.k8s.affinity import integer
from extender.k8s.job_kinds import SUSPENDED, USED_UP
from extender.k8s.manifest import is_extended
from extender.k8s.objects import Container, Pod
from extender.k8s.quantity import QuantityError, exact
from extender.queues.disruptions import CHECKPOINT_INTERVAL, CHECKPOINTED_AT
from extender.queues.gang_words import GANG, GANG_MIN, KUEUE_LEVEL
from extender.queues.queue import QUEUE_LABEL, RESTARTABLE, SYSTEM_CLASSES
from extender.untrusted.limits import KEY, LISTED_NAMES, quoted, shorten
from extender.untrusted.visible import clock_text, listed, many
from extender.verbs.gang_fit import must_wait
from packing.model.gpu_catalog import Profile, named_model, parse_profile
from packing.model.reasons import Reason
from packing.model.request import Request

_DOMAIN = "stowage.dev/"
_ANYWHERE = frozenset({QUEUE_LABEL, GANG, GANG_MIN, RESTARTABLE, CHECKPOINTED_AT, CHECKPOINT_INTERVAL})
"""Accepted as labels and as annotations."""
_OF_PODS = frozenset(
    name for name in (*REQUEST_ANNOTATIONS, *ASSIGNMENT_ANNOTATIONS, *_ANYWHERE) if name.startswith(_DOMAIN)
)
_OTHERS = {"runai-fraction": kai.FRACTION, "runai-gpu-memory": kai.MEMORY}
_BYTES = 1 << 20
_MOST_GIB = 1024
"""More than any GPU has: larger numbers are taken as MiB."""
_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
"""Resources without a domain. Sources of ``admission_problem``, in k8s.io/kubernetes
pkg/apis/core/validation/validation.go: ``validateContainerResourceName`` (no others without a domain) and
``ValidateContainerResourceRequirements`` (an extended resource needs a limit, and its request equals it)."""
_DEFAULT_SCHEDULER = "default-scheduler"
_DEFAULT_SCHEDULERS = (_DEFAULT_SCHEDULER, "stowage")

_IN_MIB = frozenset({"nvidia.com/gpumem", "nvidia.com/vgpu-memory", "volcano.sh/vgpu-memory"})
"""Resources counted in MiB, so that ``8Gi`` is a million times too much (docs/dialects.md)."""
_RESOURCES = 8
"""Maximum number of sentences on resources of the pod, and of node resources listed in each."""
_NAMED = 4
"""The same for everything else but gates."""
_NAMED_GATES = 3
_OF_PROVIDERS = re.compile(
    r"(^|\.)(cloud\.google\.com|eks\.amazonaws\.com|karpenter(\.\w+)*\.(sh|aws|azure\.com)|azure\.com"
    r"|oraclecloud\.com|coreweave\.(com|cloud)|(node|topology)\.kubernetes\.io)$"
)
"""Domains of the labels with which providers and autoscalers create nodes."""
_GPU = "nvidia.com/gpu"
_OLD_GPU = "alpha.kubernetes.io/nvidia-gpu"
"""Its name up to Kubernetes 1.10."""


def hints(state: State, pod: Pod) -> tuple[Finding, ...]:
    """At most one sentence for each kind of mistake, and for each of a few resources, words and labels."""
    request = state.request_or_none(pod)
    return (
        *_unknown_resources(state, pod, request),
        *islice(_amounts(pod), _RESOURCES),
        *_names(state, pod),
        *islice(_labels(state, pod), _NAMED),
        *_models(state, pod, request),
        *_unread_layouts(state, request),
        *_sharing(state, pod, request),
        *claim_hints(state, pod),
        *_pinned(state, pod),
        *_never_asked(state, pod, request),
        *_reserved(state, pod),
    )


def _mistake(said: Said, rank: Rank = Rank.NOTE, more: Said | None = None, fix: Fix | None = None) -> Finding:
    return Finding(said, rank, more, (fix,) if fix else ())


def _names(state: State, pod: Pod) -> Iterator[Finding]:
    """Labels and annotations that no component reads, and names that do not exist."""
    yield from islice(_unread(pod), _NAMED)
    yield from _units(pod)
    named = pod.labels.get(QUEUE_LABEL) or pod.annotations.get(QUEUE_LABEL)
    queues = state.rights.queues.by_name
    if named and named not in queues:
        near = nearest_name(named, queues)
        fix = mend(pod, "labels", {QUEUE_LABEL: near}) if near else None
        said = Word.NO_QUEUE(name=quoted(named), meant=meant(near))
        yield _mistake(said, Rank.WORD, Word.QUEUES(names=", ".join(queues)), fix)
    schedulers = {other.scheduler_name for other in state.pods.values()} | {*_DEFAULT_SCHEDULERS}
    if is_manifest(pod) and pod.scheduler_name not in schedulers and not pod.node_name:
        near = nearest_name(pod.scheduler_name, schedulers)
        said = Word.NO_SCHEDULER(name=quoted(pod.scheduler_name), meant=meant(near))
        near, more = near or "stowage", None if near else Word.IS_INSTALLED()
        fix = Fix(Word.WRITE(line=f"schedulerName: {near}"), replace(pod, scheduler_name=near))
        yield _mistake(said, Rank.WORD, more, fix)
    classes, runtimes = state.rights.queues.classes.by_name, state.admission.runtime_classes
    for kind, name, known, corrected in (
        ("PriorityClass", pod.priority_class, classes, lambda near: replace(pod, priority_class=near)),
        ("RuntimeClass", pod.runtime_class, runtimes, lambda near: replace(pod, runtime_class=near)),
    ):
        if name and known and name not in (*known, *SYSTEM_CLASSES):
            field = f"{kind[0].lower()}{kind[1:]}Name"
            yield no_such(Word.NO_CLASS, name, known, field, corrected, kind=kind)


def _unread(pod: Pod) -> Iterator[Finding]:
    """Labels and annotations that resemble those of a request, but that no component reads."""
    for what, entries, elsewhere, other in (
        ("annotation", pod.annotations, REQUEST_LABELS, "label"),
        ("label", pod.labels, REQUEST_ANNOTATIONS, "annotation"),
    ):
        here = REQUEST_ANNOTATIONS if what == "annotation" else REQUEST_LABELS | _ANYWHERE
        for name, value in entries.items():
            if is_named(elsewhere, name) and not is_named(here, name):
                article = "a label" if other == "label" else "an annotation"
                said = Word.WRONG_SECTION(name=name, what=what, other=article)
                yield _mistake(said, Rank.WORD, fix=mend(pod, f"{other}s", {name: value}, name))
            elif name.startswith(_DOMAIN) and name not in _OF_PODS:
                near = nearest_name(name, _OF_PODS)
                said = Word.NO_SUCH_KEY(what=what, name=quoted(name), meant=meant(near))
                fix = mend(pod, f"{what}s", {near: value} if near else {}, name)
                yield _mistake(said, Rank.WORD, fix=fix)
            elif what == "annotation" and (known := _OTHERS.get(name) or _near_request(pod, name)):
                said = Word.UNREAD(name=quoted(name), meant=meant(known))
                yield _mistake(said, Rank.WORD, fix=mend(pod, "annotations", {known: value}, name))


def _near_request(pod: Pod, name: str) -> str:
    if is_request(name) or is_assignment(name) or len(name) > LISTED_NAMES:
        return ""
    containers = [container.name for container in pod.spec.all_containers]
    known = {key.replace("*", container) for key in REQUEST_ANNOTATIONS for container in containers}
    return nearest_name(name, known, cutoff=0.9)


def _units(pod: Pod) -> Iterator[Finding]:
    for name in (stowage.MEMORY, DEVICE_MEMORY):
        text = pod.annotations.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) < _BYTES:
            unit = "Gi" if int(text) <= _MOST_GIB else "Mi"
            said = Word.IN_BYTES(name=name, amount=quoted(text), number=text, unit=unit)
            yield _mistake(said, Rank.WORD, fix=mend(pod, "annotations", {name: f"{text}{unit}"}))
    text = pod.annotations.get(kai.MEMORY, "")
    if not text.isdecimal() and (mib := int(_exact(text) or 0) >> 20):
        said = Word.IN_MIB(name=kai.MEMORY, amount=text, mib=mib)
        yield _mistake(said, Rank.WORD, fix=mend(pod, "annotations", {kai.MEMORY: str(mib)}))


def admission_problem(state: State, pod: Pod) -> Said | None:
    """Why the API server would reject the pod, None for no known reason."""
    known = (SYSTEM_CLASSES | state.rights.queues.classes.by_name).get(pod.priority_class)
    if known and pod.priority != known.value:
        name = shorten(known.name, KEY)
        return Word.OTHER_PRIORITY(priority=pod.priority, name=name, value=known.value)
    return next((problem for c in pod.spec.all_containers for problem in _problems(c)), None)


def _problems(container: Container) -> Iterator[Said]:
    limits = dict(container.limits)
    for name, request in container.requests:
        shown = shorten(name, KEY)
        if "/" not in name:
            if name not in _STANDARD and not name.startswith("hugepages-"):
                near = meant(_GPU if "gpu" in name.lower() else "")
                yield Word.NOT_A_RESOURCE(name=quoted(name), meant=near)
        elif "kubernetes.io/" not in name and name not in limits:
            yield Word.NO_LIMIT(name=shown, limit=written_as("limits", {name: request}))
        elif "kubernetes.io/" not in name and _differ(request, limits[name]):
            yield Word.UNEQUAL(name=shown, request=quoted(request), limit=quoted(limits[name]))


def _differ(first: str, other: str) -> bool:
    """Whether both amounts can be read, and are not equal."""
    amounts = _exact(first), _exact(other)
    return None not in amounts and amounts[0] != amounts[1]


def _exact(text: str) -> Fraction | None:
    """The amount; None if it cannot be read, which the error of the request reports."""
    with suppress(QuantityError):
        return exact(text)
    return None


def _unread_layouts(state: State, request: Request | None) -> Iterator[Finding]:
    """Unusable layouts of the MIG manager, for a pod that requests MIG instances."""
    if request and any(name.startswith(MIG_PREFIX) for name, _ in request.devices):
        for name, problem in islice(state.nodes.layout_problems(), _NAMED):
            yield _mistake(Word.LAYOUT_UNREAD(name=shorten(name, KEY), problem=shorten(problem)))


def _unknown_resources(state: State, pod: Pod, request: Request | None) -> Iterator[Finding]:
    """Extended resources that the pod requests and no node or DeviceClass offers."""
    names = dict.fromkeys(uncounted_resources(pod))
    names |= dict.fromkeys(name for name, _ in (request.devices if request else ()))
    known = state.devices.extended_resources
    unknown = [name for name in names if name not in known and not _is_offered(state, name)]
    if unknown and _lacks_runtime(state, pod):  # its nodes would offer others
        return
    if not unknown:
        yield from _never_together(state, pod, [name for name in names if name not in known])
        return
    resources = (pair for node in state.nodes.values() for pair in node.allocatable.items())
    offered = Counter(name for name, amount in resources if is_extended(name) and amount != "0")
    asked = dict(pod.spec.container_requests)
    frequent = [shorten(name, KEY) for name, _ in offered.most_common(LISTED_NAMES)]
    shown = Word.OFFERED(names=_listed(offered, _RESOURCES)) if offered else ""
    for name in unknown[:_RESOURCES]:
        if profile := parse_profile(name.removeprefix(MIG_PREFIX)):  # not a misspelled name
            near = _larger_profile(profile, frequent)
            near = near or (_GPU if _is_offered(state, _GPU) else "")
            more = Word.OFFERED_PROFILE(divided=_divided_so(state, profile), offered=shown)
        else:
            of_systems = [] if is_gpu_resource(name) else sorted(OF_SHARING_SYSTEMS)
            near = nearest_name(name, frequent) or nearest_name(name, of_systems, 0.9)
            near = near or (_GPU if name == _OLD_GPU and _is_offered(state, _GPU) else "")
            more = (Word.OFFERED_INSTEAD if near else Word.NEEDS_PLUGIN)(near=near, offered=shown)
        fix = mend(pod, "limits", {near: asked.get(name, "1")} if near else {}, name)
        if not near and is_gpu_resource(name):
            if not any(is_gpu_resource(other) for other in names.keys() - {name}):  # else a GPU remains
                fix = Fix(Word.ADD_OFFERING(name=shorten(name, KEY)))
            if hidden := hidden_gpus(state, name.partition("/")[0]):
                more = Word.PLUGIN_DOWN(hidden=hidden_said(hidden), offered=shown)
                fix = Fix(Word.CHECK_PLUGIN(node=shorten(next(iter(hidden)), KEY)))
        yield _mistake(Word.NOT_OFFERED(name=shorten(name, KEY)), Rank.WORD, more, fix)


def hidden_gpus(state: State, vendor: str = "") -> dict[str, int]:
    """The numbers of GPUs of the nodes that offer none of them, in descending order; without nodes whose
    labels name other vendors than this (``amd.com``, "" for any)."""
    others = tuple(f"{other}/" for other in VENDORS - {vendor}) if vendor else ()
    counts = sorted(unoffered_counts(state).items(), key=lambda entry: (-entry[1], entry[0]))
    labels_of = state.nodes.labels_of
    return {name: n for name, n in counts if not any(label.startswith(others) for label in labels_of(name))}


def hidden_said(counts: Mapping[str, int]) -> Said:
    """The nodes of ``hidden_gpus``."""
    texts = [f"{shorten(name, KEY)} ({count or 'unknown'})" for name, count in counts.items()]
    return Word.HIDDEN_GPUS(nodes=listed(texts, _NAMED, " nodes"))


def _lacks_runtime(state: State, pod: Pod) -> bool:
    """Whether no node has the labels that the pod's RuntimeClass selects."""
    runtime = state.admission.runtime_classes.get(pod.runtime_class)
    selected = set(runtime.node_selector) if runtime else set()
    return bool(selected) and not any(selected <= node.labels.items() for node in state.nodes.values())


def _never_together(state: State, pod: Pod, names: Sequence[str]) -> Iterator[Finding]:
    """Resources that nodes offer, but no node offers all of them."""
    offered = [
        {name for name in names if node.allocatable.get(name, "0") != "0"} for node in state.nodes.values()
    ]
    if len(names) < 2 or any(len(found) == len(names) for found in offered):
        return
    counts = Counter(chain.from_iterable(offered))
    said = Word.NOT_TOGETHER(names=" and ".join(shorten(name, KEY) for name in names[:_NAMED]))
    rest = sorted(names, key=lambda name: (is_gpu_resource(name), counts[name]))
    enough = (name for name in rest if any(len(found - {name}) == len(names) - 1 for found in offered))
    without = next(enough, "")
    fix = mend(pod, "limits", {}, without) if without else None
    yield _mistake(said, Rank.WORD, Word.NUMBERS_OF_NODES(names=_listed(counts)), fix)


def _larger_profile(asked: Profile, offered: Collection[str]) -> str:
    """The smallest of the offered MIG resources that is at least as large, "" for none."""
    profiles = ((parse_profile(name.removeprefix(MIG_PREFIX)), name) for name in offered)
    found = [
        (profile.compute, profile.memory_gb, name)
        for profile, name in profiles
        if profile and profile.compute >= asked.compute and profile.memory_gb >= asked.memory_gb
    ]
    return min(found)[2] if found else ""


def _divided_so(state: State, profile: Profile) -> Said:
    """Whether a GPU of the cluster has this profile."""
    names = Counter(spec.model for spec in state.fleet.specs if spec and spec.gpus)
    models = [model for name, _ in names.most_common() if (model := named_model(name))]
    able = [model.name for model in models if placement_on(model, profile)]
    return Word.MODELS_DIVIDE(models=", ".join(able[:_NAMED])) if able else Word.NO_MODEL_DIVIDES()


def _is_offered(state: State, name: str) -> bool:
    return any(node.allocatable.get(name, "0") != "0" for node in state.nodes.values())


def _amounts(pod: Pod) -> Iterator[Finding]:
    """Amounts in a unit other than that of Kubernetes or the dialect."""
    for name, text in dict.fromkeys(pod.spec.container_requests):
        amount = _exact(text)
        if amount is None:
            continue
        if name == "memory" and 0 < amount < 1 << 20 and text.rstrip("m").isdecimal():
            yield _mistake(Word.FEW_BYTES(amount=quoted(text), number=text.rstrip("m")))
        if text.isdecimal() or not (name in _IN_MIB or is_gpu_resource(name)):
            continue
        if name in _IN_MIB and amount >= 1 << 20:
            count, mib = f"{int(amount):,}", int(amount) >> 20
            said = Word.COUNTS_MIB(name=name, amount=quoted(text), count=count, amount_said=text, mib=mib)
            yield _mistake(said, Rank.WORD, fix=mend(pod, "limits", {name: str(mib)}, name))
        elif name not in _IN_MIB and amount % 1:
            more = Word.DIVIDED_BY(annotation=stowage.COMPUTE)
            yield _mistake(Word.NOT_DIVIDED(name=shorten(name, KEY)), Rank.WORD, more)


def _sharing(state: State, pod: Pod, request: Request | None) -> Iterator[Finding]:
    if request is None or (shares := request.shares) is None:
        return
    shared = Counter(spec.sharing_resource for spec in state.fleet.specs if spec and spec.sharing_resource)
    unread = any(spec.blocked is Reason.UNREADABLE for spec in state.fleet.specs if spec)
    if shares.resource in shared or unread:  # a register that cannot be read may be that of the system
        return
    if shares.resource == stowage.RESOURCE:
        label = f"{STOWAGE_SHARING}=true"
        yield _mistake(
            Word.NO_SHARED_NODE(label=label), Rank.RULE, fix=Fix(Word.LABEL_FOR_SHARING(label=label))
        )
        return
    others = ", ".join(f"{system_name(name)} ({nodes})" for name, nodes in shared.most_common())
    more = Word.SHARED_WITH(systems=others) if others else Word.NOTHING_SHARED()
    parts = dict.fromkeys(name for name, _ in pod.spec.container_requests if name in OF_SHARING_SYSTEMS)
    limits, whole = {_GPU: str(shares.count)}, pod
    for name in parts if _is_offered(state, _GPU) else ():
        whole = mend(whole, "limits", limits, name).pod or whole
    paste = Word.WHOLE_GPUS(line=written_as("limits", limits), parts=", ".join(parts))
    fix = Fix(paste, whole) if whole is not pod else None
    yield _mistake(Word.SYSTEM_NOWHERE(system=system_name(shares.resource)), Rank.RULE, more, fix)


def _pinned(state: State, pod: Pod) -> Iterator[Finding]:
    if pod.node_name and is_manifest(pod):
        known = pod.node_name in state.nodes
        said = Word.PINNED(node=quoted(pod.node_name), missing="" if known else Word.NO_SUCH_NODE())
        fix = Fix(Word.LEAVE_OUT(what="spec.nodeName"))
        yield _mistake(said, Rank.NOTE if known else Rank.NEVER, fix=fix)


def _never_asked(state: State, pod: Pod, request: Request | None) -> Iterator[Finding]:
    if pod.scheduler_name == _DEFAULT_SCHEDULER and not pod.node_name:
        yield _mistake(Word.OF_DEFAULT())
    names = [name.lower() for name, amount in pod.spec.container_requests if amount != "0"]
    sounds_like_gpu = any("gpu" in name or "mig-" in name for name in names)
    if request and not (wants_devices(state, pod, request) or sounds_like_gpu):
        yield _mistake(Word.NO_GPU())
    elif request and request.wants_gpu and not extended_resources(pod):
        yield _mistake(Word.BY_ANNOTATIONS())
    asks_shared = koordinator.SHARED in dict(pod.spec.container_requests)
    if asks_shared and _is_offered(state, koordinator.CORE) and not _is_offered(state, koordinator.SHARED):
        yield _mistake(Word.LEFT_TO_SCHEDULER(name=koordinator.SHARED))


def _reserved(state: State, pod: Pod) -> Iterator[Finding]:
    """The nodes that are reserved for the pod, or for others and closed to it."""
    jobs, now = state.large_jobs, state.end_costs.clock()
    closed = () if pod.node_name else [*jobs.closed_to(pod)]
    for reservation in jobs.table.current:
        count, at = len(reservation.nodes), reservation.at
        nodes, (are, them) = many(count, "node"), ("is", "it") if count == 1 else ("are", "them")
        if jobs.reserved_for(pod) == reservation:
            yield _mistake(Word.RESERVED_FOR_IT(nodes=nodes, are=are, at=clock_text(at)))
        elif reservation in closed:
            most = int(at - now - pod.grace)
            more = Word.END_BEFORE(most=most, them=them) if most > 0 else None
            said = Word.RESERVED_FOR_OTHERS(nodes=nodes, are=are, reserved=jobs.text(reservation, pod))
            yield _mistake(said, more=more)


def _labels(state: State, pod: Pod) -> Iterator[Finding]:
    """Labels that the selector, the only affinity term or Kueue requires, and no node has; and bounds of
    labels that are no integers."""
    terms = pod.scheduling_constraints.node_affinity or ()
    required = terms[0].labels if len(terms) == 1 else ()
    asked: list[tuple[str, tuple[str, ...]]] = [(key, (value,)) for key, value in pod.spec.node_selector]
    selected = len(asked)
    asked += [(r.key, r.values) for r in required if r.operator == "In"]
    asked += [(pod.annotations[KUEUE_LEVEL], ())] if KUEUE_LEVEL in pod.annotations else []
    for r in required:
        if r.operator in ("Gt", "Lt") and r.values and integer(r.values[0]) is None:
            said = Word.NOT_AN_INTEGER(key=shorten(r.key, KEY), op=r.operator, value=quoted(r.values[0]))
            yield _mistake(said, Rank.RULE)
    for number, (key, values) in enumerate(asked):
        known = Counter(shorten(node.labels[key], KEY) for node in state.nodes.values() if key in node.labels)
        instead: dict[str, str] = {}
        more, mended = None, None
        if not known:
            keys = dict.fromkeys(chain.from_iterable(node.labels for node in state.nodes.values()))
            near = nearest_key(key, keys)
            said = Word.NO_LABEL(key=shorten(key, KEY), meant=meant(near))
            domain, slash, _ = key.partition("/")
            more = Word.AUTOSCALED() if slash and _OF_PROVIDERS.search(domain) else None
            more = Word.LEVEL_OF_KUEUE() if key == pod.annotations.get(KUEUE_LEVEL) else more
            instead = {near if name == key else name: value for name, value in pod.spec.node_selector}
            selector = tuple(sorted(instead.items()))
            mended = replace(pod, spec=replace(pod.spec, node_selector=selector))
        elif values and not any(shorten(value, KEY) in known for value in values):
            near = nearest_name(values[0], known)
            wanted = " or ".join(map(quoted, values[:_NAMED]))
            said = Word.NO_VALUE(key=shorten(key, KEY), values=wanted, meant=meant(near))
            instead = {key: near}
            more = Word.NODES_HAVE(names=_listed(known))
        else:
            continue
        fix = Fix(writing("nodeSelector", instead), mended) if near and number < selected else None
        yield _mistake(said, Rank.RULE, more, fix)


def _models(state: State, pod: Pod, request: Request | None) -> Iterator[Finding]:
    if request is None or not (request.products.allow or request.products.deny):
        return
    products = Counter(spec.product or spec.model or "" for spec in state.fleet.specs if spec and spec.gpus)
    products.pop("", None)
    if products and not any(request.products.permits(name) for name in products):
        key = next((key for key in pod_request.MODEL_LISTS if key in pod.annotations), "")
        asked = Word.MODELS_ASKED(key=key, value=shorten(pod.annotations[key], KEY)) if key else ""
        fix = mend(pod, "annotations", {}, key) if key else None
        yield _mistake(Word.NO_MODEL(asked=asked), Rank.RULE, Word.NODES_HAVE(names=_listed(products)), fix)


def _listed(counts: Counter[str], most: int = _NAMED) -> str:
    """The most frequent names, with their numbers of nodes."""
    return listed([f"{shorten(name, KEY)} ({nodes})" for name, nodes in counts.most_common()], most)


def gates_said(pod: Pod) -> Said | None:
    """The pod's scheduling gates, with the meaning of Kueue's gates; None for none. kube-scheduler does not
    try such a pod, and no room is made for it."""
    if not pod.gates:
        return None
    if pod.gates == (SUSPENDED,):
        return Word.SUSPENDED(gate=SUSPENDED)
    if pod.gates[:1] == (USED_UP,):
        return Word.NOT_CREATED(quota=" ".join(pod.gates))
    meanings = ((gate, GATES.get(gate)) for gate in pod.gates)
    named = [shorten(gate, KEY) + f" ({text})" * bool(text) for gate, text in meanings]
    return Word.GATED(s="s" * (len(named) > 1), gates=listed(named, _NAMED_GATES))


def describe_gang(state: State, pod: Pod) -> str:
    """The pod's gang, the numbers of its members that run, have succeeded or are gated, why it must wait, and
    the room that is held for it; "" for no gang."""
    gang = state.gangs.gang_of(pod)
    if gang is None:
        return ""
    members = {member.key: member for member in state.gangs.members(gang.key)}
    members.setdefault(pod.key, pod)
    more = [Word.GANG_SUCCEEDED(count=gang.succeeded)] if gang.succeeded else []
    more.append(Word.GANG_MINIMUM(count=gang.minimum) if gang.minimum else Word.GANG_ANY())
    more += _required_domains(state, pod)
    if gang.uncounted and not gang.together:
        more.append(Word.GANG_UNCOUNTED(source=gang.uncounted))
    gated = sum(1 for member in members.values() if member.gates and not member.node_name)
    if gated:
        free = max(len(members), gang.minimum - gang.succeeded) - gated
        more.append(Word.GANG_GATED(count=gated))
        more += [Word.GANG_TOO_FEW()] if free + gang.succeeded < gang.minimum else []
    waits = "" if pod.node_name or state.gangs.never_tried(pod) else must_wait(state, pod)
    more += [Word.GANG_NOTE(note=note) for note in (waits, state.gang_holds.describe(gang.key)) if note]
    running, name = state.gangs.running(gang.key), shorten(gang.key, KEY)
    return str(Word.GANG(gang=name, running=running, members=len(members), more="".join(map(str, more))))


def _required_domains(state: State, pod: Pod) -> Iterator[Said]:
    """The topology domains that the pod must share with others, and those that they have taken."""
    taken, _ = state.gang_domains.taken(pod)
    for domain in state.gangs.domains_of(pod):
        names = sorted(shorten(name or "none", KEY) for name in taken.get(domain, ()))
        level, where = domain.level, f" ({', '.join(names)})" if names else ""
        if not domain.key:
            yield Word.GANG_UNREADABLE_DOMAIN()
        elif domain.size:
            yield Word.GANG_SLICE(size=domain.size, level=level, where=where)
        else:
            yield Word.GANG_DOMAIN(level=level, where=where)
