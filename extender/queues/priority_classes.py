"""The PriorityClasses of the cluster: the queue that they name, and what their pods tolerate."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from extender.k8s.eviction_objects import PriorityClass
from extender.k8s.objects import Deleted, Event, Listed, Upserted


class PriorityClasses:
    """PriorityClasses by name. ``revision`` is another object after each change."""

    def __init__(self) -> None:
        self.revision = object()
        self._classes: dict[str, PriorityClass] = {}

    def apply(self, event: Event) -> None:
        """Take in an event of this kind."""
        before = dict(self._classes)
        match event:
            case Upserted(PriorityClass() as record):
                self._classes[record.name] = record
            case Deleted(_, name):
                self._classes.pop(name, None)
            case Listed(_, names):
                self._classes = {name: known for name, known in self._classes.items() if name in names}
        if self._classes != before:
            self.revision = object()

    def records(self) -> list[PriorityClass]:
        """All of them."""
        return list(self._classes.values())

    def get(self, name: str) -> PriorityClass | None:
        return self._classes.get(name)

    @property
    def names(self) -> Collection[str]:
        return self._classes.keys()

    @property
    def problems(self) -> Mapping[str, str]:
        """What cannot be read, by kind and name."""
        classes = self._classes.values()
        return {f"PriorityClass {one.name}": one.problem for one in classes if one.problem}
