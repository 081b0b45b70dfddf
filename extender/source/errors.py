"""Errors of the API server, of snapshots and of a command's input."""

from __future__ import annotations

NOT_LEADER = "this replica of Stowage is no longer the leader"
"""Why a write reserved for the leader was not sent."""
BEHIND = "the connection to the API server broke, and Stowage has not caught up yet"
"""Why a verb does not answer while ``Source.caught_up`` is false."""


class SourceError(Exception):
    """Base of all errors of a source."""


class BadInput(SourceError):
    """Options, or files that they name, that are unusable or contradict each other; the text names them."""


class Unavailable(SourceError):
    """The source cannot be used, for example because the file or the kubeconfig does not exist."""


class BindError(SourceError):
    """The pod was not bound. The text can be shown in the pod's event."""


class BindConflict(BindError):
    """The pod is already bound, is being deleted, or was recreated under its name."""


class PodNotFound(BindError):
    """The pod does not exist."""


class Unreachable(BindError):
    """The API server did not answer. The watch will show whether the pod is bound."""


class LeaseError(SourceError):
    """The Lease was not read, or may not have been written. ``forbidden``: for lack of a right."""

    def __init__(self, text: str, *, forbidden: bool = False) -> None:
        super().__init__(text)
        self.forbidden = forbidden


class ReviewError(SourceError):
    """The review of a token or of its user's access failed. The text may be logged."""


class WriteError(SourceError):
    """The API server refused a write of the evictor, or it was not sent. The text may be logged and shown.

    ``status``: the HTTP status, 0 if the write was not sent.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class WriteUnanswered(WriteError):
    """The API server did not answer, or answered with an internal error: the write may have succeeded."""
