"""What a GPU is worth beside others: by its model, or by names that an operator gives numbers.

An A100 with 80 GB is 1. The value of a model of the catalogue is the mean of its dense FP16 rate and its
memory, each as a multiple of the A100's. It orders models roughly as their prices do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import geometric_mean

from packing.model.gpu_catalogue import Model, models, named_model

_FP16, _MIB = 312.0, 81920.0
"""Dense FP16 rate in TFLOPS and memory of an A100 with 80 GB."""
UNKNOWN = 1.0
"""The value of a GPU of a model that nothing is known of."""


def catalogue_value(model: Model) -> float:
    """The mean of FP16 rate and memory, an A100 with 80 GB being 1."""
    return (model.fp16_tflops / _FP16 + model.memory_mib / _MIB) / 2


def number_for(numbers: Mapping[str, float], model: str | None, product: str) -> float | None:
    """The number of the longest name whose words are all among the words of the model and the product
    label; None if there is none. Letter case, hyphens and spaces do not count."""
    words = set(_words(f"{model or ''} {product}"))
    found = [name for name in numbers if (wanted := _words(name)) and set(wanted) <= words]
    return numbers[max(found, key=len)] if found else None


def _words(text: str) -> list[str]:
    return text.lower().replace("-", " ").split()


@dataclass(frozen=True, slots=True)
class GpuValues:
    """``given`` numbers by name, such as prices (above 0), in any unit; the catalogue's for other models."""

    given: Mapping[str, float] = field(default_factory=dict)

    def of(self, model: str | None, product: str) -> float:
        """The value of one GPU, above 0, an A100 with 80 GB being about 1; ``UNKNOWN`` where neither the
        given names nor the catalogue know the model."""
        if (number := number_for(self.given, model, product)) is not None:
            return number / _unit(tuple(self.given.items()))
        known = named_model(model)
        return catalogue_value(known) if known else UNKNOWN


@lru_cache(maxsize=16)
def _unit(given: tuple[tuple[str, float], ...]) -> float:
    """The given number that is worth 1: the mean ratio to the catalogue's values, so that models without a
    given number keep their relation to those with one."""
    named = [(number_for(dict(given), model.name, ""), catalogue_value(model)) for model in models()]
    ratios = [number / value for number, value in named if number is not None]
    return geometric_mean(ratios) if ratios else 1.0
