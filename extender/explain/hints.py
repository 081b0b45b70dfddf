"""What is probably wrong with a pod's request as such, in sentences for its author.

A resource that no node offers, an amount in the wrong unit, a pod that kube-scheduler will place without
asking Stowage: in these cases no node is to blame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from difflib import get_close_matches

from extender.cluster.state import State
from extender.dialects.pod_request import request_of
from extender.dialects.pod_resources import RequestError
from extender.dialects.sharing import stowage
from extender.inventory.devices import is_gpu_resource
from extender.inventory.sharing.stowage import LABEL
from extender.k8s.node_filter import other_resources
from extender.k8s.objects import Node, Pod
from extender.k8s.quantity import QuantityError, exact
from extender.untrusted.limits import KEY, LISTED_NAMES, quoted, shorten

_IN_MIB = frozenset({"nvidia.com/gpumem", "nvidia.com/vgpu-memory", "volcano.sh/vgpu-memory"})
"""Resources that count MiB, so that ``8Gi`` is a million times too much (docs/dialects.md)."""
_NAMED = 8
"""Resources of the nodes that are listed."""
_DEFAULT_SCHEDULER = "default-scheduler"


def hints(state: State, pod: Pod) -> tuple[str, ...]:
    """At most one sentence for each kind of mistake and each resource, for at most 64 resources."""
    return tuple([*_unknown_resources(state, pod), *_amounts(pod), *_sharing(state, pod), *_never_asked(pod)])


def missing_resources(state: State, pod: Pod) -> list[str]:
    """Extended resources that the pod requests, and that no node and no DeviceClass offers."""
    names = list(uncounted_resources(pod))
    with suppress(RequestError):
        names += [name for name, _ in request_of(pod).devices[:LISTED_NAMES]]
    offered = _offered(state) if names else Counter()
    known = state.devices.extended_resources
    return [name for name in names if name not in offered and name not in known]


def missing_on(node: Node, pod_resources: Collection[str]) -> str:
    """The first of these extended resources that the node does not offer, "" if it offers all."""
    return next((name for name in pod_resources if node.allocatable.get(name, "0") == "0"), "")


def uncounted_resources(pod: Pod) -> dict[str, str]:
    """The extended resources that the pod requests and that only kube-scheduler counts, with an amount."""
    others = sorted(filter(_is_extended, other_resources(pod)))[:LISTED_NAMES]
    requests = dict(_requests(pod))
    return {name: shorten(requests.get(name, ""), KEY) for name in others}


def _requests(pod: Pod) -> Iterator[tuple[str, str]]:
    for container in pod.spec.all_containers:
        yield from container.requests


def _is_extended(name: str) -> bool:
    """As Kubernetes says it (``IsExtendedResourceName`` in k8s.io/component-helpers)."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def _offered(state: State) -> Counter[str]:
    """How many nodes offer each extended resource."""
    names = (node.allocatable.items() for node in state.nodes.values())
    return Counter(name for pairs in names for name, amount in pairs if _is_extended(name) and amount != "0")


def _unknown_resources(state: State, pod: Pod) -> Iterator[str]:
    for name in missing_resources(state, pod):
        offered = _offered(state)
        near = get_close_matches(name, offered, n=1, cutoff=0.75)
        text = f"No node offers {shorten(name, KEY)}"
        text += f". Did you mean {shorten(near[0], KEY)}?" if near else "."
        shown = [f"{shorten(one, KEY)} ({nodes})" for one, nodes in offered.most_common(_NAMED)]
        more = f" and {len(offered) - _NAMED} more" if len(offered) > _NAMED else ""
        yield text + (f" Offered, with numbers of nodes: {', '.join(shown)}{more}." if shown else "")


def _amounts(pod: Pod) -> Iterator[str]:
    """Amounts with a unit where Kubernetes or the dialect counts in another one."""
    for name, text in dict.fromkeys(_requests(pod)):
        if text.isdecimal() or not (name in _IN_MIB or is_gpu_resource(name)):
            continue
        try:
            amount = exact(text)
        except QuantityError:
            continue
        if name in _IN_MIB and amount >= 1 << 20:
            written = f"{quoted(text)} asks for {int(amount):,} MiB"
            yield f"{name} counts MiB: {written}. For {text} of memory write {int(amount) >> 20}."
        elif name not in _IN_MIB and amount % 1:
            yield (
                f"Kubernetes knows no parts of {name}. For a part of a GPU use a sharing system, or nodes "
                f"that Stowage shares (annotation {stowage.COMPUTE}, docs/dialects.md)."
            )


def _sharing(state: State, pod: Pod) -> Iterator[str]:
    try:
        shares = request_of(pod).shares
    except RequestError:
        return
    shared = {spec.sharing_resource for spec in state.fleet.specs if spec}
    if shares is None or shares.resource in shared:
        return
    if shares.resource == stowage.RESOURCE:
        yield f"No node is set aside for parts of GPUs: label nodes {LABEL}=true (docs/bind.md)."
    else:
        yield f"No node gives out parts of GPUs as {shares.resource} (docs/dialects.md)."


def _never_asked(pod: Pod) -> Iterator[str]:
    if pod.scheduler_name == _DEFAULT_SCHEDULER and not pod.node_name:
        yield (
            "Its schedulerName is default-scheduler: Stowage is asked only if that scheduler is configured "
            "with it (scheduler-config/)."
        )
    names = {name for name, _ in _requests(pod)}
    try:
        wants_gpu = request_of(pod).wants_gpu
    except RequestError:
        return
    if wants_gpu and not any(map(is_gpu_resource, names)) and not any(map(_is_extended, names)):
        yield (
            "It asks for a GPU in annotations only. Where the configuration of kube-scheduler lists "
            "managedResources, such a pod is placed without Stowage (scheduler-config/README.md)."
        )
