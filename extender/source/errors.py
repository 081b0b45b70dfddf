"""What goes wrong between Stowage and the API server or a snapshot."""

from __future__ import annotations

NOT_LEADER = "this replica of Stowage is no longer the leader"
"""Why a write was not sent that only the leader may send."""
BEHIND = "the connection to the API server broke, and Stowage has not caught up yet"
"""Why a verb does not answer while ``Source.caught_up`` is false."""


class SourceError(Exception):
    """Base of all errors of a source."""


class Unavailable(SourceError):
    """The source cannot be used at all: no such file, no kubeconfig."""


class BindError(SourceError):
    """The pod was not bound. The text can be shown in the pod's event."""


class BindConflict(BindError):
    """The pod is already bound, is being deleted, or was recreated under its name."""


class PodNotFound(BindError):
    """There is no such pod."""


class Unreachable(BindError):
    """The API server did not answer. The watch will show whether the pod is bound."""


class LeaseError(SourceError):
    """The Lease was not read, or may not have been written."""


class ReviewError(SourceError):
    """It is not known whether a token is valid, or what its owner may do. The text may be logged."""


class WriteError(SourceError):
    """The API server refused a write of the evictor, or it was not sent. The text may be logged and shown.

    ``status``: that of HTTP, 0 if it was not sent.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class WriteUnanswered(WriteError):
    """The API server did not answer, or with an internal error: the write may have happened."""
