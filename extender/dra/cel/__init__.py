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

from collections.abc import Callable, Mapping
from functools import lru_cache

from extender.dra.cel.parser import Parser
from extender.dra.cel.terms import Defaulting, Failed, Names, NotUnderstood, Unclear, fail
from extender.dra.values import Amount

__all__ = ["Failed", "NotUnderstood", "Unclear", "compiled", "subject"]

_LONGEST = 10 * 1024  # characters, by the API


def subject(
    driver: str,
    attributes: Mapping[str, Mapping[str, object]],
    capacity: Mapping[str, Mapping[str, Amount]],
    *,
    shared: bool = False,
) -> Names:
    """The variables of an expression for a device; attributes and capacities by domain and name."""
    fields = {
        "driver": driver,
        "attributes": Defaulting(attributes),
        "capacity": Defaulting(capacity),
        "allowMultipleAllocations": shared,
    }
    return {"device": fields}


@lru_cache(maxsize=1024)
def compiled(expression: str) -> Callable[[Names], bool]:
    """The selector as a function of a ``subject``, which raises ``Unclear``. Raises ``NotUnderstood``."""
    if len(expression) > _LONGEST:
        raise NotUnderstood(f"longer than {_LONGEST} characters")
    try:
        step = Parser(expression).whole()
    except RecursionError:
        raise NotUnderstood("nested too deeply") from None

    def matches(names: Names) -> bool:
        result: object
        try:
            result = step(names)
        except RecursionError:
            raise Failed("nested too deeply") from None
        return result if isinstance(result, bool) else fail("the result is not true or false")

    return matches
