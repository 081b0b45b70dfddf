"""The verbs of ``extender/v1``, and the replies that say why one is refused.

Importing this loads no kernels: a service says that it is not ready before it has any.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from pydantic_core import to_json

from extender.untrusted.visible import visible

Verb: TypeAlias = Literal["filter", "prioritize", "preempt", "bind"]
VERBS: tuple[Verb, ...] = get_args(Verb)


class BadMessage(ValueError):
    """The request is not an ``extender/v1`` message; the text can be shown in a pod's event."""


def filter_error(text: str) -> bytes:
    """A filter reply that fails the scheduling attempt."""
    nothing = b'"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null'
    return b'{%b,"Error":%b}' % (nothing, to_json(visible(text)))


def bind_error(text: str) -> bytes:
    """A bind reply. An empty text means that the pod is bound."""
    return b'{"Error":%b}' % to_json(visible(text))
