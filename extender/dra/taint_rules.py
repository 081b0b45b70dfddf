"""DeviceTaintRules: taints that an administrator puts on devices, beside those of the driver.

As kube-scheduler has it, a device gets the taints of all rules that select it (``applyPatches`` in
k8s.io/dynamic-resource-allocation v0.36.3, ``resourceslice/tracker``).
"""

from __future__ import annotations

from itertools import chain, islice, product

from extender.dra.cel.program import Unsupported
from extender.k8s.affinity import Taint
from extender.k8s.resource_api.objects import DeviceId, DeviceTaintRule
from extender.untrusted.limits import DEVICE_TAINTS, quoted


class TaintRules:
    """All rules."""

    def __init__(self) -> None:
        # By (driver, pool, device) with "" for any, and by kind and name.
        self._by_selector: dict[tuple[str, str, str], dict[tuple[str, str], DeviceTaintRule]] = {}

    def put(self, rule: DeviceTaintRule) -> None:
        self._by_selector.setdefault(_selector(rule), {})[rule.kind, rule.key] = rule

    def remove(self, rule: DeviceTaintRule) -> None:
        rules = self._by_selector[_selector(rule)]
        del rules[rule.kind, rule.key]
        if not rules:
            del self._by_selector[_selector(rule)]

    def taints_of(self, device: DeviceId) -> tuple[Taint, ...]:
        """The taints that rules put on a device. Raises ``Unsupported`` where one of them cannot be read."""
        if not self._by_selector:
            return ()
        selectors = product((device.driver, ""), (device.pool, ""), (device.device, ""))
        selecting = chain.from_iterable(self._by_selector.get(one, {}).values() for one in selectors)
        rules = list(islice(selecting, DEVICE_TAINTS + 1))
        if len(rules) > DEVICE_TAINTS:
            raise Unsupported(f"more than {DEVICE_TAINTS} DeviceTaintRules for a device")
        for rule in rules:
            if rule.problem:
                raise Unsupported(f"DeviceTaintRule {quoted(rule.name)}: {rule.problem}")
        return tuple(rule.taint for rule in rules)


def _selector(rule: DeviceTaintRule) -> tuple[str, str, str]:
    return rule.driver, rule.pool, rule.device
