"""No number of an object is larger than the API server has them: no float holds some that JSON can write."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from msgspec import Struct, inspect

import extender.k8s

BOUNDED_WHERE_READ = {
    *("_Attribute.int", "_Pool.generation", "_Pool.resourceSliceCount"),
    "PriorityClassManifest.value",
}
"""Such a number is not known, and hides nothing beside it."""


def unbounded(kind: inspect.Type, where: str) -> Iterator[str]:
    """The places of numbers without a bound in a type."""
    if isinstance(kind, inspect.IntType) and (kind.ge is None or kind.le is kind.lt):
        yield where
    for name in ("item_type", "key_type", "value_type", "types", "item_types", "type"):
        part = getattr(kind, name, ())
        for inner in part if isinstance(part, tuple) else [part]:
            if isinstance(inner, inspect.Type):
                yield from unbounded(inner, where)


def test_every_field_that_is_decoded_has_a_bound():
    for module in pkgutil.iter_modules(extender.k8s.__path__, "extender.k8s."):
        importlib.import_module(module.name)
    kinds = [Struct]
    for kind in kinds:
        kinds += kind.__subclasses__()
    read = [kind for kind in kinds if kind.__module__.startswith("extender.k8s")]
    types = [info for kind in read if isinstance(info := inspect.type_info(kind), inspect.StructType)]
    assert len(types) > 40
    places = {
        place
        for info in types
        for field in info.fields
        for place in unbounded(field.type, f"{info.cls.__name__}.{field.encode_name}")
    }
    assert places == BOUNDED_WHERE_READ
