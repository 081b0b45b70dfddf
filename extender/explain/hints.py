"""Probable mistakes in a pod's request, in sentences for its author: a resource, label or model that no node
has, an amount in the wrong unit, scheduling gates, a pod that kube-scheduler will place without calling
Stowage. These are independent of single nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice

from extender.cluster.other_resources import OF_SHARING_SYSTEMS, asked_by, wants_devices
from extender.cluster.state import State
from extender.dialects import hami, pod_request, stowage
from extender.dialects.shared_gpus import MIG_PREFIX, is_gpu_resource
from extender.dra.pod_claims import class_resources, to_be_made
from extender.explain.words import (
    Hint,
    Kind,
    did_you_mean,
    is_manifest,
    meant,
    mend,
    nearest_key,
    nearest_name,
    word_hints,
    written_as,
)
from extender.inventory.mig_layouts import placement_on
from extender.inventory.node_inventory import STOWAGE_SHARING
from extender.k8s.manifest import is_extended
from extender.k8s.objects import Node, Pod
from extender.k8s.quantity import QuantityError, exact
from extender.k8s.resource_claims import DeviceSubRequest
from extender.source.workloads import SUSPENDED
from extender.untrusted.limits import KEY, LISTED_NAMES, quoted, shorten
from extender.untrusted.visible import listed
from packing.model.gpu_catalog import Profile, named_model, parse_profile
from packing.model.request import Request

_IN_MIB = frozenset({"nvidia.com/gpumem", "nvidia.com/vgpu-memory", "volcano.sh/vgpu-memory"})
"""Resources counted in MiB, so that ``8Gi`` is a million times too much (docs/dialects.md)."""
_SYSTEMS = {
    "nvidia.com/gpu": "HAMi",
    "nvidia.com/vgpu-number": "vgpu-manager",
    "volcano.sh/vgpu-number": "Volcano",
    "koordinator.sh/gpu": "Koordinator",
    "aliyun.com/gpu-mem": "gpushare",
}
_GATES = {
    "kueue.x-k8s.io/admission": "Kueue has not admitted it to its queue",
    "kueue.x-k8s.io/topology": "Kueue has not assigned it to a topology domain",
    "kueue.x-k8s.io/elastic-job": "Kueue has not admitted this part of its elastic job",
}
"""Sources: kubernetes-sigs/kueue at ff69552e79ad, ``pkg/controller/jobs/pod/constants/constants.go``
(SchedulingGateName), ``apis/kueue/v1beta2/topology_types.go`` (TopologySchedulingGate) and ``constants.go``
(ElasticJobSchedulingGate)."""
_RESOURCES = 8
"""Maximum number of sentences on resources of the pod, and of node resources listed in each."""
_NAMED = 4
"""The same for everything else but gates."""
_NAMED_GATES = 3
_MODELS = (pod_request.MODELS, hami.USE_TYPE, pod_request.NOT_MODELS, hami.DENY_TYPE)
"""Annotations that allow or exclude models of GPUs."""
_DEFAULT_SCHEDULER = "default-scheduler"
_GPU = "nvidia.com/gpu"
_WITHOUT_PLUGIN = "It needs nodes with such devices and their device plugin. "


def hints(state: State, pod: Pod) -> tuple[Hint, ...]:
    """At most one sentence for each kind of mistake, and for each of a few resources, words and labels."""
    request = state.request_or_none(pod)
    return (
        *_unknown_resources(state, pod, request),
        *islice(_amounts(pod), _RESOURCES),
        *word_hints(state, pod),
        *islice(_labels(state, pod), _NAMED),
        *_models(state, pod, request),
        *_unread_layouts(state, request),
        *_sharing(state, pod, request),
        *_claims(state, pod),
        *_pinned(state, pod),
        *_never_asked(state, pod, request),
    )


def missing_on(node: Node, pod_resources: Collection[str]) -> str:
    """The first of these extended resources that the node does not offer, "" if it offers all."""
    return next((name for name in pod_resources if node.allocatable.get(name, "0") == "0"), "")


def uncounted_resources(pod: Pod) -> dict[str, str]:
    """Extended resources that the pod requests and only kube-scheduler counts, with an amount; including
    unknown resources in the domain of a sharing system (``nvidia.com/gpus``)."""
    requests, asked = dict(_requests(pod)), asked_by(pod)
    shown = sorted(filter(is_extended, asked))[:LISTED_NAMES]
    return {name: shorten(requests.get(name, ""), KEY) for name in shown}


def of_classes(pod: Pod) -> dict[str, str]:
    """Resources that the pod requests by the names of device classes, with an amount."""
    requests = dict(_requests(pod))
    return {name: shorten(requests.get(name, ""), KEY) for name in class_resources(pod.spec)[:LISTED_NAMES]}


def claims_asked(state: State, pod: Pod) -> dict[str, str]:
    """Requests of the pod's claims, as far as they are known: numbers, classes, and first selectors."""
    made = dict(pod.claims)
    texts = []
    for entry in pod.spec.claims:
        claim = state.devices.claims.get(f"{pod.namespace}/{entry.claim or made.get(entry.name, '')}")
        template = state.devices.templates.get(f"{pod.namespace}/{entry.template}")
        devices = claim.devices if claim else template.devices if template else entry.devices
        requests = devices.requests[:_NAMED] if devices else ()
        asked = ", ".join(" or ".join(map(_devices, request.subrequests[:_NAMED])) for request in requests)
        texts.append(shorten(entry.name, KEY) + (f" ({asked})" if asked else ""))
    return {"claims": shorten(listed(texts, _NAMED))} if texts else {}


def _devices(asked: DeviceSubRequest) -> str:
    count = "all" if asked.count is None else asked.count
    where = f" where {shorten(asked.expressions[0], KEY)}" if asked.expressions else ""
    return f"{count} {shorten(asked.device_class, KEY)}{where}"


def _unread_layouts(state: State, request: Request | None) -> Iterator[Hint]:
    """Unusable layouts of the MIG manager, for a pod that requests MIG instances."""
    if request and any(name.startswith(MIG_PREFIX) for name, _ in request.devices):
        for name, problem in islice(state.nodes.layout_problems(), _NAMED):
            text = f"{shorten(name, KEY)}: {shorten(problem)}. GPUs are therefore chosen without the layout."
            yield Hint(Kind.NOTE, text)


def _requests(pod: Pod) -> Iterator[tuple[str, str]]:
    for container in pod.spec.all_containers:
        yield from container.requests


def _unknown_resources(state: State, pod: Pod, request: Request | None) -> Iterator[Hint]:
    """Extended resources that the pod requests and no node or DeviceClass offers."""
    names = dict.fromkeys(uncounted_resources(pod))
    names |= dict.fromkeys(name for name, _ in (request.devices if request else ()))
    known = state.devices.extended_resources
    unknown = [name for name in names if name not in known and not _is_offered(state, name)]
    if not unknown:
        yield from _never_together(state, pod, [name for name in names if name not in known])
        return
    resources = (pair for node in state.nodes.values() for pair in node.allocatable.items())
    offered = Counter(name for name, amount in resources if is_extended(name) and amount != "0")
    asked = dict(_requests(pod))
    frequent = [shorten(name, KEY) for name, _ in offered.most_common(LISTED_NAMES)]
    shown = f"Offered, with numbers of nodes: {_listed(offered, _RESOURCES)}." if offered else ""
    for name in unknown[:_RESOURCES]:
        text = f"No node offers {shorten(name, KEY)}. "
        if profile := parse_profile(name.removeprefix(MIG_PREFIX)):  # not a misspelled name
            near = _larger_profile(profile, frequent)
            near = near or (_GPU if _is_offered(state, _GPU) else "")
            text += f"{_divided_so(state, profile)} "
        else:
            near = nearest_name(name, frequent)
            text += f"Did you mean {near}? " if near else _WITHOUT_PLUGIN
        text = (text + shown).rstrip()
        yield Hint(Kind.WORD, text, *mend(pod, "limits", {near: asked.get(name, "1")} if near else {}, name))


def _never_together(state: State, pod: Pod, names: Sequence[str]) -> Iterator[Hint]:
    """Resources that nodes offer, but no node offers all of them."""
    offered = [
        {name for name in names if node.allocatable.get(name, "0") != "0"} for node in state.nodes.values()
    ]
    if len(names) < 2 or any(len(found) == len(names) for found in offered):
        return
    counts = Counter(chain.from_iterable(offered))
    listed = " and ".join(shorten(name, KEY) for name in names[:_NAMED])
    text = (
        f"No node offers {listed} together, and a pod runs on one node. Numbers of nodes: {_listed(counts)}."
    )
    rest = sorted(names, key=lambda name: (is_gpu_resource(name), counts[name]))
    enough = (name for name in rest if any(len(found - {name}) == len(names) - 1 for found in offered))
    without = next(enough, "")
    yield Hint(Kind.WORD, text, *(mend(pod, "limits", {}, without) if without else ()))


def _larger_profile(asked: Profile, offered: Collection[str]) -> str:
    """The smallest of the offered MIG resources that is at least as large, "" for none."""
    profiles = ((parse_profile(name.removeprefix(MIG_PREFIX)), name) for name in offered)
    found = [
        (profile.compute, profile.memory_gb, name)
        for profile, name in profiles
        if profile and profile.compute >= asked.compute and profile.memory_gb >= asked.memory_gb
    ]
    return min(found)[2] if found else ""


def _divided_so(state: State, profile: Profile) -> str:
    """Whether a GPU of the cluster has this profile."""
    names = Counter(spec.model for spec in state.fleet.specs if spec and spec.gpus)
    models = [model for name, _ in names.most_common() if (model := named_model(name))]
    able = [model.name for model in models if placement_on(model, profile)]
    if not able:
        return "No GPU model of the nodes has this MIG profile."
    return f"{', '.join(able[:_NAMED])} can be divided into it: see stowage plan mig."


def _is_offered(state: State, name: str) -> bool:
    return any(node.allocatable.get(name, "0") != "0" for node in state.nodes.values())


def _amounts(pod: Pod) -> Iterator[Hint]:
    """Amounts in a unit other than that of Kubernetes or the dialect."""
    for name, text in dict.fromkeys(_requests(pod)):
        if name == "memory" and (few := _few_bytes(text)):
            yield Hint(Kind.NOTE, few)
        if text.isdecimal() or not (name in _IN_MIB or is_gpu_resource(name)):
            continue
        try:
            amount = exact(text)
        except QuantityError:
            continue
        if name in _IN_MIB and amount >= 1 << 20:
            written = f"{quoted(text)} requests {int(amount):,} MiB"
            said = f"{name} counts MiB: {written}. For {text} of memory write {int(amount) >> 20}."
            yield Hint(Kind.WORD, said, *mend(pod, "limits", {name: str(int(amount) >> 20)}, name))
        elif name not in _IN_MIB and amount % 1:
            said = (
                f"Kubernetes does not divide {shorten(name, KEY)}. For a fraction of a GPU use a sharing "
                f"system, or nodes that Stowage shares (annotation {stowage.COMPUTE}, docs/dialects.md)."
            )
            yield Hint(Kind.WORD, said)


def _few_bytes(text: str) -> str:
    """A hint if a container cannot start with so little memory."""
    number = text.rstrip("m")
    try:
        if exact(text) >= 1 << 20 or not exact(text) or not number.isdecimal():
            return ""
    except QuantityError:
        return ""
    return f"memory: {quoted(text)} is less than a MiB. For {number} MiB write {number}Mi."


def _sharing(state: State, pod: Pod, request: Request | None) -> Iterator[Hint]:
    if request is None or (shares := request.shares) is None:
        return
    shared = Counter(spec.sharing_resource for spec in state.fleet.specs if spec and spec.sharing_resource)
    if shares.resource in shared:
        return
    if shares.resource == stowage.RESOURCE:
        text = f"No node is reserved for shared GPUs: label nodes {STOWAGE_SHARING}=true (docs/bind.md)."
        yield Hint(Kind.RULE, text, f"kubectl label node NAME {STOWAGE_SHARING}=true")
        return
    others = ", ".join(f"{_SYSTEMS.get(name, 'Stowage')} ({nodes})" for name, nodes in shared.most_common())
    known = f" Nodes share GPUs with {others}." if others else " No node here shares its GPUs."
    words = f"the format of {_SYSTEMS[shares.resource]}, which runs on no node"
    parts = dict.fromkeys(name for name, _ in _requests(pod) if name in OF_SHARING_SYSTEMS)
    limits, whole = {_GPU: str(shares.count)}, pod
    for name in parts if _is_offered(state, _GPU) else ():
        _, whole = mend(whole, "limits", limits, name)
    paste = f"{written_as('limits', limits)} for whole GPUs, without {', '.join(parts)}"
    mended = (paste, whole) if whole is not pod else ()
    yield Hint(Kind.RULE, f"It requests fractions of GPUs in {words}.{known}", *mended)


def _claims(state: State, pod: Pod) -> Iterator[Hint]:
    """Claims that do not exist; the devices are known once they are created."""
    if pod.node_name or pod.claims:
        return
    if pod.spec.claims and not state.devices.classes:
        kinds = "nodes,pods,deviceclasses,resourceslices,resourceclaims,resourceclaimtemplates"
        text = f"No DeviceClass is known. A snapshot has them with: kubectl get {kinds} -A -o json"
        yield Hint(Kind.NOTE, text)
    made = len(to_be_made(state.devices, pod)) == len(pod.spec.claims)
    for entry in pod.spec.claims[:_NAMED]:
        if entry.template and not made:
            template = f"the ResourceClaimTemplate {quoted(entry.template)} when the pod is created"
            again = f"Afterwards, repeat: stowage explain {shorten(pod.key, KEY)}"
            yield Hint(Kind.NOTE, f"Its claim {quoted(entry.name)} is made from {template}. {again}")
        elif entry.claim and f"{pod.namespace}/{entry.claim}" not in state.devices.claims:
            names = [
                key.partition("/")[2] for key in state.devices.claims if key.startswith(f"{pod.namespace}/")
            ]
            near = did_you_mean(entry.claim, names)
            text = f"Its claim {quoted(entry.claim)} does not exist in the namespace {pod.namespace}{near}."
            yield Hint(Kind.NEVER, text, f"kubectl get resourceclaims -n {pod.namespace}")


def _pinned(state: State, pod: Pod) -> Iterator[Hint]:
    """A manifest that names its node."""
    if pod.node_name and is_manifest(pod):
        known = pod.node_name in state.nodes
        there = "" if known else ", and there is no such node"
        text = (
            f"Its manifest sets nodeName {quoted(pod.node_name)}{there}: kube-scheduler and Stowage are "
            "bypassed, and kubelet rejects the pod if the node has too few resources."
        )
        yield Hint(Kind.NOTE if known else Kind.NEVER, text, "leave out spec.nodeName")


NO_GPU = "It requests no GPU."
OF_DEFAULT = (
    "Its schedulerName is default-scheduler: Stowage is called only if that scheduler is configured with it "
    "(scheduler-config/)."
)
_BY_ANNOTATIONS = (
    "It requests a GPU in annotations only. If the configuration of kube-scheduler lists "
    "managedResources, such a pod is placed without Stowage (scheduler-config/README.md)."
)


def _never_asked(state: State, pod: Pod, request: Request | None) -> Iterator[Hint]:
    if pod.scheduler_name == _DEFAULT_SCHEDULER and not pod.node_name:
        yield Hint(Kind.NOTE, OF_DEFAULT)
    names = [name.lower() for name, amount in _requests(pod) if amount != "0"]
    sounds_like_gpu = any("gpu" in name or "mig-" in name for name in names)
    if request and not (wants_devices(state, pod, request) or sounds_like_gpu):
        yield Hint(Kind.NOTE, NO_GPU)
    elif request and request.wants_gpu and not any(is_extended(name) for name, _ in _requests(pod)):
        yield Hint(Kind.NOTE, _BY_ANNOTATIONS)


def _labels(state: State, pod: Pod) -> Iterator[Hint]:
    """Labels that the selector or the only affinity term requires, and no node has."""
    terms = pod.scheduling_constraints.node_affinity or ()
    required = terms[0].labels if len(terms) == 1 else ()
    asked: list[tuple[str, tuple[str, ...]]] = [(key, (value,)) for key, value in pod.spec.node_selector]
    selected = len(asked)
    asked += [(r.key, r.values) for r in required if r.operator == "In"]
    for number, (key, values) in enumerate(asked):
        known = Counter(shorten(node.labels[key], KEY) for node in state.nodes.values() if key in node.labels)
        paste = ""
        if not known:
            keys = dict.fromkeys(chain.from_iterable(node.labels for node in state.nodes.values()))
            near = nearest_key(key, keys)
            text = f"No node has a label {shorten(key, KEY)}{meant(near)}."
            if near and number < selected:
                paste = written_as("nodeSelector", {near: values[0]})
        elif not any(shorten(value, KEY) in known for value in values):
            near = did_you_mean(values[0], known) if values else ""
            wanted = " or ".join(map(quoted, values[:_NAMED]))
            text = f"No node has the label {shorten(key, KEY)}={wanted}{near}. Nodes have {_listed(known)}."
            if near and number < selected:
                paste = written_as("nodeSelector", {key: nearest_name(values[0], known)})
        else:
            continue
        yield Hint(Kind.RULE, text, paste)


def _models(state: State, pod: Pod, request: Request | None) -> Iterator[Hint]:
    if request is None or not (request.products.allow or request.products.deny):
        return
    products = Counter(spec.product or spec.model or "" for spec in state.fleet.specs if spec and spec.gpus)
    products.pop("", None)
    if products and not any(request.products.permits(name) for name in products):
        key = next((key for key in _MODELS if key in pod.annotations), "")
        said = f" ({key}: {shorten(pod.annotations[key], KEY)})" if key else ""
        text = f"No node has a GPU model that the pod allows{said}. Nodes have {_listed(products)}."
        yield Hint(Kind.RULE, text, *(mend(pod, "annotations", {}, key) if key else ()))


def _listed(counts: Counter[str], most: int = _NAMED) -> str:
    """The most frequent names, with their numbers of nodes."""
    return listed([f"{shorten(name, KEY)} ({nodes})" for name, nodes in counts.most_common()], most)


def gates_text(pod: Pod) -> str:
    """The pod's scheduling gates, with the meaning of Kueue's gates; "" for none. kube-scheduler does not try
    such a pod, and no room is made for it."""
    if not pod.gates:
        return ""
    if pod.gates == (SUSPENDED,):
        return f"its workload is suspended ({SUSPENDED})"
    meanings = ((gate, _GATES.get(gate)) for gate in pod.gates)
    named = [shorten(gate, KEY) + f" ({text})" * bool(text) for gate, text in meanings]
    return f"held by the scheduling gate{'s' * (len(named) > 1)} {listed(named, _NAMED_GATES)}"


def describe_gang(state: State, pod: Pod) -> str:
    """The pod's gang, the numbers of its members that run, have succeeded or are gated, and the room that is
    held for it; "" for no gang."""
    gang = state.gangs.gang_of(pod)
    if gang is None:
        return ""
    members = {member.key: member for member in state.gangs.members(gang.key)}
    members.setdefault(pod.key, pod)
    text = f"It belongs to the gang {shorten(gang.key, KEY)}: "
    text += f"{state.gangs.running(gang.key)} of {len(members)} members run"
    text += f", {gang.succeeded} more succeeded" if gang.succeeded else ""
    text += f", {gang.minimum} must" if gang.minimum else ", any number may"
    if gang.uncounted and not gang.together:
        text += f"; they start one by one, because {gang.uncounted}, which says how many, is not seen"
    gated = sum(1 for member in members.values() if member.gates and not member.node_name)
    if gated:
        text += f"; {gated} held by scheduling gates"
        free = max(len(members), gang.minimum - gang.succeeded) - gated
        text += ", so the minimum cannot run yet" if free + gang.succeeded < gang.minimum else ""
    held = state.gang_holds.describe(gang.key)
    return f"{text}; {held}" if held else text
