"""Reads the settings: one YAML file, overridden by environment variables ``STOWAGE_<KEY>``.

An invalid setting stops the start with a message that names the key, its origin and the expected values.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from extender.settings import Settings, SettingsError
from extender.untrusted.yaml_reader import TextError, yaml_documents

PREFIX = "STOWAGE_"
# The kubelet injects such variables for a Service "stowage" (STOWAGE_PORT=tcp://10.0.0.1:80): not for us.
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")

_log = logging.getLogger(__name__)


class _Given(NamedTuple):
    """A value and its origin, for the error message."""

    value: Any
    origin: str


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Settings from an optional YAML file, overridden by ``STOWAGE_<KEY>`` of ``environ``.

    Raises ``SettingsError`` with a line for every unknown key and every invalid value.
    """
    given = _from_file(path) if path else {}
    given |= _from_environment(environ)
    try:
        return Settings.model_validate({key: value for key, (value, _) in given.items()})
    except ValidationError as error:
        lines = [_problem(item["loc"], item["type"], item["msg"], given) for item in error.errors()]
        raise SettingsError("\n".join(dict.fromkeys(lines))) from None


def _from_file(path: Path) -> dict[str, _Given]:
    try:
        documents = yaml_documents(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not YAML") from None
    except TextError as error:
        raise SettingsError(f"{path}: is not YAML: {error}") from None
    content = (documents[0] if documents else None) or {}
    if len(documents) > 1 or not isinstance(content, dict):
        raise SettingsError(f"{path}: expected 'key: value' lines, such as 'shortlist: 64'")
    return {key: _Given(value, str(path)) for key, value in content.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    given = {}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        key = variable.removeprefix(PREFIX).lower()
        if key in Settings.model_fields:
            given[key] = _Given(_scalar(environ[variable]), f"environment variable {variable}")
        elif not _SERVICE_LINK.search(variable):
            # Only a warning: others may set variables in our environment.
            _log.warning("environment variable %s is not a setting%s", variable, _nearest(key, prefix=PREFIX))
    return given


def _scalar(text: str) -> object:
    """``text`` as YAML. Numbers stay text: the model converts them, and 1.30 stays a version."""
    try:
        documents = yaml_documents(text, plain=lambda plain: None if plain in ("null", "~") else plain)
    except TextError:
        return text
    if len(documents) != 1:
        return text or None
    return None if documents[0] == "" else documents[0]


def _problem(loc: tuple[int | str, ...], kind: str, message: str, given: Mapping[str, _Given]) -> str:
    key = str(loc[0])
    value, origin = given[key]
    if len(loc) > 1:
        place = ".".join(map(str, loc))
        return f"{origin}: {place}: {message}; expected {Settings.model_fields[key].description}"
    if kind == "extra_forbidden":
        return f"{origin}: {key}: unknown setting{_nearest(key)}"
    if kind == "value_error":
        return f"{origin}: {key}: {message.removeprefix('Value error, ')}"
    return f"{origin}: {key}: invalid value {value!r}; expected {Settings.model_fields[key].description}"


def _nearest(key: str, prefix: str = "") -> str:
    near = difflib.get_close_matches(key, Settings.model_fields, n=1)
    if not near:
        return ""
    return f"; did you mean {prefix + near[0].upper() if prefix else near[0]}?"
