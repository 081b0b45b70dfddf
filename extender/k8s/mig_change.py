"""The annotation of a node whose MIG layout Stowage changes. It is the only record of the change's progress,
from which the next leader continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from extender.untrusted.limits import DEVICES_PER_NODE, KEY, MIG_PROFILES, NAME

ANNOTATION = "stowage.dev/mig-change"
_LONGEST = 48 * 3600.0
"""Maximum seconds from the beginning of a change for which it may close a node, or prevent another change."""
_SKEW = 300.0
"""Maximum clock skew in seconds."""
_SIZE = 8192
Step: TypeAlias = Literal["drain", "apply", "revert", "done", "given_up", "failed"]
_Name: TypeAlias = Annotated[str, Meta(max_length=NAME)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=DEVICES_PER_NODE)]


class NodeLayout(Struct, frozen=True, omit_defaults=True):
    """A MIG layout, and the resources that a node offers with it. ``name``: the MIG manager's name of it, ""
    for a layout that would have to be added. ``profile``: of all instances with the strategy ``single``.
    """

    name: _Name
    devices: Annotated[dict[_Name, _Count], Meta(max_length=MIG_PROFILES)]
    profile: _Name = ""


class MigChange(Struct, frozen=True, omit_defaults=True):
    """``since``: start of the change; ``until``: end of this step or, after the last step, of the cooldown of
    the node, in Unix seconds. ``pod``: the key of the first pod that waits for the change."""

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
        """Whether the time of this step is not over. False for times that Stowage cannot have written."""
        return self.since - _SKEW <= now < min(self.until, self.since + _LONGEST)

    def closes(self, now: float) -> bool:
        """Whether the node accepts no new pods. Expires even if no leader continues the change."""
        return self.is_active and self.lasts(now)

    def described(self) -> str:
        """The change, its pod, its progress, and how to stop it, as text."""
        whom = f" for {self.pod}" if self.pod else ""
        text = f"MIG layout {self.before.name} to {self.after.name}{whom}: {self.step}"
        return f"{text}; to stop it, remove the annotation {ANNOTATION}" if self.is_active else text

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def mig_change_of(annotations: Mapping[str, str]) -> MigChange | None:
    """The change in these annotations of a node; None for none, or if it cannot be read."""
    text = annotations.get(ANNOTATION, "")
    if not text or len(text) > _SIZE:
        return None
    try:
        return msgspec.json.decode(text, type=MigChange)
    except (msgspec.DecodeError, RecursionError):
        return None
