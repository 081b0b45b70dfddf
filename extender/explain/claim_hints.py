"""Probable mistakes in a pod's claims of devices and volumes: names that do not exist, more than any has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from extender.cluster.state import State
from extender.dra.cel.program import EvaluationFailed, Meter, Unsupported
from extender.dra.cel.selector import Selector, compile_selector
from extender.dra.pod_claims import devices_asked, to_be_made
from extender.dra.pools import DevicePool
from extender.explain.fixes import Finding, Fix, Rank, meant, nearest_name, no_such
from extender.explain.words import Said, Word
from extender.k8s.objects import Pod
from extender.k8s.resource_claims import DeviceSubRequest
from extender.k8s.resource_slices import Device
from extender.untrusted.limits import KEY, quoted, shorten
from extender.untrusted.visible import listed

_NAMED = 4
"""Maximum number of claims, of requests of each, and of names."""
_AT_LEAST = re.compile(r"\.(\w+)\.compareTo\(quantity\(['\"](\w+)['\"]\)\) *>=? *0")
"""A capacity in a CEL selector, and the least amount of it."""
_ATTRIBUTE = re.compile(r"device\.attributes\[['\"][\w.-]+['\"]\]\.(\w+)")


def claim_hints(state: State, pod: Pod) -> Iterator[Finding]:
    """One for each of the first claims."""
    yield from _claims(state, pod)
    yield from _devices_asked(state, pod)
    yield from _volumes(state, pod)


def _claims(state: State, pod: Pod) -> Iterator[Finding]:
    """Claims that do not exist; the devices are known once they are created."""
    if pod.node_name or pod.claims:
        return
    if pod.spec.claims and not state.devices.classes:
        kinds = "nodes,pods,deviceclasses,resourceslices,resourceclaims,resourceclaimtemplates"
        yield Finding(Word.NO_DEVICE_CLASS(), more=Word.WITH_CLASSES(kinds=kinds))
    made = len(to_be_made(state.devices, pod)) == len(pod.spec.claims)
    for entry in pod.spec.claims[:_NAMED]:
        if entry.template and not made:
            said = Word.CLAIM_TO_COME(claim=quoted(entry.name), template=quoted(entry.template))
            yield Finding(said, more=Word.REPEAT(pod=shorten(pod.key, KEY)))
        elif entry.claim and f"{pod.namespace}/{entry.claim}" not in state.devices.claims:
            claims = state.devices.claims
            near = meant(nearest_name(entry.claim, _own(pod, claims))) or _elsewhere(entry.claim, claims)
            said = Word.NO_CLAIM(claim=quoted(entry.claim), namespace=pod.namespace, meant=near)
            yield Finding(said, Rank.NEVER, fixes=(Fix(Word.LIST_CLAIMS(namespace=pod.namespace)),))


def _devices_asked(state: State, pod: Pod) -> Iterator[Finding]:
    """Classes and templates of claims that do not exist, and more memory or the like than any device has."""
    classes = state.devices.classes
    for entry in pod.spec.claims[:_NAMED]:
        claim, devices = quoted(entry.name), devices_asked(state.devices, pod, entry)
        if entry.template and devices is None and not pod.claims:
            own = _own(pod, state.devices.templates)
            missing = no_such(Word.NO_TEMPLATE, entry.template, own, "resourceClaimTemplateName", claim=claim)
            yield from [missing] if missing.fixes else ()
        asked = [(sub, r) for r in (devices.requests if devices else ()) for sub in r.subrequests]
        for sub, request in asked[:_NAMED] if classes else ():
            if (name := sub.device_class) not in classes:
                yield no_such(Word.NO_CLASS_OF_DEVICES, name, classes, "deviceClassName", claim=claim)
            elif len(request.subrequests) == 1 and (unmet := _unmet(state, sub, claim)):
                yield Finding(unmet, Rank.NEVER)


def _unmet(state: State, asked: DeviceSubRequest, claim: str) -> Said | None:
    """What of a request no device meets, even if all are free: the class, a selector, or the number on one
    node; None if they meet it, or that is not known."""
    of_class = state.devices.classes[asked.device_class].selectors
    texts, meter, most = (*of_class, *asked.expressions), Meter(), 0
    failed: dict[int, list[Device]] = {}
    try:
        selectors = [compile_selector(text, meter) for text in texts]
        for node in state.nodes:
            on_node = state.devices.on_node(node, state.nodes.labels_of(node))
            passed = [_passed(*device, selectors, len(of_class), meter) for device in on_node.devices]
            meter.spend(1 + len(passed))
            here = passed.count(len(selectors))
            is_shared = any(pool.devices[i].allow_multiple_allocations for pool, i in on_node.devices)
            if here >= (asked.count or 1) or (here and is_shared) or on_node.has_incomplete_pool:
                return None
            most = max(most, here)
            for number, (pool, index) in zip(passed, on_node.devices, strict=True):
                failed.setdefault(number, []).append(pool.devices[index])
    except Unsupported:
        return None
    first, name = max(failed, default=0), quoted(asked.device_class)
    if most:
        return Word.MORE_THAN_ANY(asked=asked.count, name=name, claim=claim, most=most)
    if first < len(of_class) or not texts:
        return Word.NO_DEVICE_OF_CLASS(name=name, claim=claim) if failed else None
    devices, text = failed[first], texts[first]
    if (least := _AT_LEAST.search(text)) and (largest := _largest(devices, least[1])):
        return Word.LARGER_THAN_ANY(what=least[1], asked=least[2], claim=claim, largest=largest)
    values = {key: {d.attribute_text(key) for d in devices} for key in _ATTRIBUTE.findall(text)[:_NAMED]}
    have = [f"{key} {quoted(v)}" if v else f"no {key}" for key, some in values.items() for v in sorted(some)]
    has = f": they have {listed(have, _NAMED)}" if have else ""
    return Word.NO_DEVICE_MATCHES(selector=shorten(text), claim=claim, has=has)


def _passed(pool: DevicePool, index: int, selectors: Sequence[Selector], of_class: int, meter: Meter) -> int:
    """Number of selectors, in order, that match a device; the first ones are ``of_class``."""
    for number, selector in enumerate(selectors):
        try:
            if not pool.matches(index, selector, meter, of_class=number < of_class):
                return number
        except EvaluationFailed:
            return number
    return len(selectors)


def _largest(devices: Sequence[Device], name: str) -> str:
    amounts = (of[name].number for device in devices for of in device.capacity.values() if name in of)
    return f"{float(max(amounts, default=0)) / (1 << 30):.4g}Gi".removeprefix("0Gi")


def _volumes(state: State, pod: Pod) -> Iterator[Finding]:
    """PersistentVolumeClaims that do not exist."""
    keys, space = state.admission.claim_keys(), pod.namespace
    known = _own(pod, keys)

    def corrected(name: str, near: str) -> Pod:
        return replace(pod, volume_claims=tuple(near if own == name else own for own in pod.volume_claims))

    for name in pod.volume_claims[:_NAMED]:
        if keys and name not in (*known, *pod.ephemeral_claims):
            other, where = partial(corrected, name), _elsewhere(name, keys)
            yield no_such(
                Word.NO_VOLUME_CLAIM, name, known, "claimName", other, otherwise=where, namespace=space
            )


def _own(pod: Pod, keys: Iterable[str]) -> list[str]:
    """Names of the objects in the namespace of the pod."""
    return [key.partition("/")[2] for key in keys if key.startswith(f"{pod.namespace}/")]


def _elsewhere(name: str, keys: Collection[str]) -> str:
    """The namespaces that have an object of this name."""
    spaces = [key.partition("/")[0] for key in keys if key.partition("/")[2] == name]
    return str(Word.ELSEWHERE(namespaces=listed(spaces, _NAMED))) if spaces else ""
