"""Compiles and evaluates the CEL selectors of device classes and claims.

Supported: literals, lists, ``device.driver``, ``device.attributes``, ``device.capacity`` and
``device.allowMultipleAllocations``, comparison, ``in``, ``&&``, ``||``, ``!``, ``?:``, arithmetic, ``has()``,
``cel.bind()``, ``.?`` with ``orValue``, the functions and macros of ``functions.py``.
Anything else raises ``Unsupported`` when the expression is compiled.

Why not a library: of three that were tried (November 2026) cel-expr-python 0.1.3 has no user-defined types
(quantities, versions) and weighs 50 MB, common-expression-language 0.10.0 supports neither ``cel.bind`` nor
``.?``, cel-python 0.5.0 takes 1 ms for what takes 10 us here; and none has Kubernetes' functions.

Sources: the variables and their defaults in k8s.io/dynamic-resource-allocation ``cel/compile.go`` (v0.36.3),
the libraries ``quantity.go`` and ``semverlib.go`` of k8s.io/apiserver ``pkg/cel/library``, and, for what an
error does to ``&&``, ``||``, ``==``, ``in`` and the macros, cel-go v0.26.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from extender.dra.cel.parser import Parser, tokenize
from extender.dra.cel.program import (
    BudgetExhausted,
    DefaultingMap,
    Meter,
    Program,
    Scope,
    Unsupported,
    Variables,
    fail,
)
from extender.k8s.resource_api.objects import Amount
from extender.untrusted.bounded_cache import BoundedMap
from extender.untrusted.limits import SELECTOR, STEP_TEXT

_TOKEN_STEPS = 16  # to compile a token
_TOKEN_BYTES = 400  # of a compiled token, about
_COMPILED: BoundedMap[str, Selector | str] = BoundedMap(1024, 2 << 20)
"""By expression; a text is the problem of an expression that is not supported."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled expression. ``key`` identifies it, and is much shorter."""

    key: bytes
    program: Program

    def __call__(self, variables: Variables, meter: Meter | None = None) -> bool:
        """Whether the device with these ``device_variables`` matches. Raises ``MatchUnknown``."""
        meter = meter or Meter()
        try:
            with meter.one_expression():
                result = self.program(Scope(variables, meter))
        except RecursionError:
            raise Unsupported("nested too deeply") from None
        return result if isinstance(result, bool) else fail("the result is not true or false")


def device_variables(
    driver: str,
    attributes: Mapping[str, Mapping[str, object]],
    capacity: Mapping[str, Mapping[str, Amount]],
    *,
    allow_multiple_allocations: bool = False,
) -> Variables:
    """The variables of an expression for a device; attributes and capacities by domain and name."""
    return {
        "device": {
            "driver": driver,
            "attributes": DefaultingMap(attributes),
            "capacity": DefaultingMap(capacity),
            "allowMultipleAllocations": allow_multiple_allocations,
        }
    }


def compile_selector(expression: str, meter: Meter | None = None) -> Selector:
    """The selector of this expression. Raises ``Unsupported``.

    Compiling spends steps of the ``meter``; recent expressions are cached and cost nothing.
    """
    compiled = _COMPILED.get(expression) or _compile(expression, meter or Meter())
    if isinstance(compiled, str):
        raise Unsupported(compiled)
    return compiled


def _compile(expression: str, meter: Meter) -> Selector | str:
    token_count = 0
    try:
        if len(expression) > SELECTOR:
            raise Unsupported(f"longer than {SELECTOR} characters")
        meter.spend_compiling(len(expression) // STEP_TEXT)
        tokens = tokenize(expression)
        token_count = len(tokens)
        meter.spend_compiling(_TOKEN_STEPS * token_count)
        key = blake2b(expression.encode(errors="surrogatepass"), digest_size=16).digest()
        compiled: Selector | str = Selector(key, Parser(tokens).parse())
    except BudgetExhausted:
        raise
    except Unsupported as error:
        compiled = str(error)
    _COMPILED.put(expression, compiled, len(expression) + _TOKEN_BYTES * token_count)
    return compiled
