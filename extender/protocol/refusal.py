"""Replies of the verbs that have nothing to say but what is wrong: status 200, with the text in ``Error``.

Apart from the other replies, since a process that is not ready yet has to give them, too.
"""

from __future__ import annotations

from pydantic_core import to_json


def filter_error(text: str) -> bytes:
    """A filter reply that fails the attempt."""
    nothing = b'"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null'
    return b'{%b,"Error":%b}' % (nothing, to_json(text))


def bind_error(text: str) -> bytes:
    """A bind reply; the empty text means bound."""
    return b'{"Error":%b}' % to_json(text)
