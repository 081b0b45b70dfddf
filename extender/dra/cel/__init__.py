"""The part of CEL that selectors of devices are written in, evaluated exactly as kube-scheduler does.

Understood: literals, lists, ``device.driver``, ``device.attributes``, ``device.capacity`` and
``device.allowMultipleAllocations``, comparison, ``in``, ``&&``, ``||``, ``!``, ``?:``, arithmetic, ``has()``,
``cel.bind()``, ``.?`` with ``orValue``, the macros of ``macros.py`` and the functions of ``functions.py``.
Everything else is ``NotUnderstood`` when the expression is compiled.

Why not a library: of three that were tried (November 2026) cel-expr-python 0.1.3 has no types of one's own
(quantities, versions) and weighs 50 MB, common-expression-language 0.10.0 knows neither ``cel.bind`` nor
``.?``, cel-python 0.5.0 takes 1 ms for what takes 10 us here; and none has Kubernetes' functions.

Sources: the variables and their defaults in k8s.io/dynamic-resource-allocation ``cel/compile.go`` (v0.36.3),
the libraries ``quantity.go`` and ``semverlib.go`` of k8s.io/apiserver ``pkg/cel/library``, and, for what an
error does to ``&&``, ``||``, ``==``, ``in`` and the macros, cel-go v0.26.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from extender.dra.cel.parser import Parser, tokens
from extender.dra.cel.terms import (
    Defaulting,
    Exhausted,
    Failed,
    Meter,
    Names,
    NotUnderstood,
    Step,
    Unclear,
    Variables,
    fail,
)
from extender.k8s.resource_api.values import Amount
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import SELECTOR, STEP_TEXT

__all__ = ["Exhausted", "Failed", "Meter", "NotUnderstood", "Selector", "Unclear", "compiled", "subject"]

_TOKEN_STEPS = 16
"""Steps that a token takes to compile."""
_TOKEN_BYTES = 400
"""What is kept of a token, about."""
_COMPILED: BoundedMap[str, Selector | str] = BoundedMap(1024, 2 << 20)
"""By expression; a text says why it is not understood."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled expression. ``key`` tells it from others, and is much shorter."""

    key: bytes
    step: Step

    def __call__(self, variables: Variables, meter: Meter | None = None) -> bool:
        """Whether it matches a ``subject``; takes steps from the meter. Raises ``Unclear``."""
        meter = meter or Meter()
        result: object
        try:
            with meter.one_expression():
                result = self.step.run(Names(variables, meter))
        except RecursionError:
            raise NotUnderstood("nested too deeply") from None
        return result if isinstance(result, bool) else fail("the result is not true or false")


def subject(
    driver: str,
    attributes: Mapping[str, Mapping[str, object]],
    capacity: Mapping[str, Mapping[str, Amount]],
    *,
    shared: bool = False,
) -> Variables:
    """The variables of an expression for a device; attributes and capacities by domain and name."""
    fields = {
        "driver": driver,
        "attributes": Defaulting(attributes),
        "capacity": Defaulting(capacity),
        "allowMultipleAllocations": shared,
    }
    return {"device": fields}


def compiled(expression: str, meter: Meter | None = None) -> Selector:
    """The selector that an expression is. Raises ``NotUnderstood``.

    To compile it takes steps from the ``meter``, where it was not compiled of late.
    """
    found = _COMPILED.get(expression) or _compile(expression, meter or Meter())
    if isinstance(found, str):
        raise NotUnderstood(found)
    return found


def _compile(expression: str, meter: Meter) -> Selector | str:
    made: Selector | str
    count = 0
    try:
        if len(expression) > SELECTOR:
            raise NotUnderstood(f"longer than {SELECTOR} characters")
        meter.spend_beside(len(expression) // STEP_TEXT)
        found = tokens(expression)
        count = len(found)
        meter.spend_beside(_TOKEN_STEPS * count)
        key = blake2b(expression.encode(errors="surrogatepass"), digest_size=16).digest()
        made = Selector(key, Parser(found).whole())
    except Exhausted:
        raise
    except NotUnderstood as error:
        made = str(error)
    _COMPILED.put(expression, made, len(expression) + _TOKEN_BYTES * count)
    return made
