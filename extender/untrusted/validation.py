"""What is wrong with a message or manifest that pydantic rejects, as one short line."""

from __future__ import annotations

from pydantic import ValidationError

from extender.untrusted.limits import ERRORS, QUOTED, shorten


def validation_problem(error: ValidationError) -> str:
    """The first problem and its path, in at most ``PROBLEM`` characters.

    Beyond ``ERRORS`` problems only their number, because pydantic describes all of them to give the first.
    """
    if (count := error.error_count()) > ERRORS:
        return f"{count} values are invalid"
    first = error.errors(include_url=False, include_input=False)[0]
    text = "Input should be an object" if first["type"] in ("model_type", "dict_type") else first["msg"]
    path = ".".join(shorten(str(part), QUOTED) for part in first["loc"])
    return shorten(": ".join(filter(None, (path, text))))
