"""The annotation of a node whose MIG layout Stowage changes. It says how far the change is, so that whoever
leads next goes on with it. No other place knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from extender.untrusted.limits import DEVICES_PER_NODE, KEY, MIG_PROFILES, NAME

ANNOTATION = "stowage.dev/mig-change"
_LONGEST = 48 * 3600.0
"""Seconds from the beginning of a change for which it may close a node, or keep it from another one."""
_SKEW = 300.0
"""Seconds by which clocks may differ."""
_SIZE = 8192
Step: TypeAlias = Literal["drain", "apply", "revert", "done", "given_up", "failed"]
_Name: TypeAlias = Annotated[str, Meta(max_length=NAME)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=DEVICES_PER_NODE)]


class NodeLayout(Struct, frozen=True, omit_defaults=True):
    """A MIG layout, and what a node offers with it, by resource. ``name``: as the MIG manager knows it, ""
    for one that somebody would have to add. ``profile``: of all instances where the strategy is ``single``.
    """

    name: _Name
    devices: Annotated[dict[_Name, _Count], Meta(max_length=MIG_PROFILES)]
    profile: _Name = ""


class MigChange(Struct, frozen=True, omit_defaults=True):
    """``since``: when the change began, and ``until`` the time at which this step ends: after the last one
    for how long the node is left alone. Unix seconds. ``pod``: the key of the first pod that waits for it."""

    before: NodeLayout = field(name="from")
    after: NodeLayout = field(name="to")
    step: Step
    since: float
    until: float
    pod: Annotated[str, Meta(max_length=2 * KEY)] = ""

    @property
    def is_active(self) -> bool:
        return self.step in ("drain", "apply", "revert")

    def lasts(self, now: float) -> bool:
        """Whether the time of this step is not over. It is, too, where no Stowage can have written it."""
        return self.since - _SKEW <= now < min(self.until, self.since + _LONGEST)

    def closes(self, now: float) -> bool:
        """Whether the node takes no new pods. That ends also if nobody goes on with the change."""
        return self.is_active and self.lasts(now)

    def described(self) -> str:
        """For people: what changes, for whom, how far it is, and what stops it."""
        whom = f" for {self.pod}" if self.pod else ""
        text = f"MIG layout {self.before.name} to {self.after.name}{whom}: {self.step}"
        return f"{text}; to stop it, remove the annotation {ANNOTATION}" if self.is_active else text

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def mig_change_of(annotations: Mapping[str, str]) -> MigChange | None:
    """The change that these annotations of a node tell of; None for none, or where it cannot be read."""
    text = annotations.get(ANNOTATION, "")
    if not text or len(text) > _SIZE:
        return None
    try:
        return msgspec.json.decode(text, type=MigChange)
    except (msgspec.DecodeError, RecursionError):
        return None
