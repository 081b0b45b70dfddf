"""Node selector terms, of pods and of devices: semantics as in ``k8s.io/component-helpers``
(``scheduling/corev1/nodeaffinity``), v1.36."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_INTEGER = re.compile(r"[-+]?[0-9]{1,63}")
"""What ``Gt`` and ``Lt`` compare, as Go's ``ParseInt`` reads it; a label has 63 characters at most."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A demand on one label of a node: ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it; an operator that is not known is not met."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
        return False

    def _compares(self, value: str | None) -> bool:
        here, there = _integer(value or ""), _integer(self.values[0] if len(self.values) == 1 else "")
        if here is None or there is None:
            return False
        return here > there if self.operator == "Gt" else here < there


def _integer(text: str) -> int | None:
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True)
class Term:
    """One way to meet the affinity: all of these on labels, and on fields (``metadata.name`` alone)."""

    labels: tuple[Expression, ...] = ()
    fields: tuple[Expression, ...] = ()

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node of this name and these labels meets all; a term without any demand is met by
        none."""
        fields = {"metadata.name": name}
        return bool(self.labels or self.fields) and (
            all(one.holds(labels) for one in self.labels) and all(one.holds(fields) for one in self.fields)
        )
