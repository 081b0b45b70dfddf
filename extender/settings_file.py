"""Reads the settings: one YAML file, overridden by environment variables ``STOWAGE_<KEY>``.

``queues`` are merged by name with the default ones. An invalid setting stops the start with a message that
names the key, its origin and the expected values.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from extender.settings import API, DEFAULT_QUEUES, ExpectedRequest, Queue, Settings, SettingsError, Window
from extender.untrusted.files import FileError, FileReader
from extender.untrusted.limits import SETTINGS_FILE
from extender.untrusted.yaml_reader import TextError, yaml_documents

PREFIX = "STOWAGE_"
# The kubelet injects such variables for a Service "stowage" (STOWAGE_PORT=tcp://10.0.0.1:80): no settings.
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
    return load_with_origins(path, environ)[0]


def load_with_origins(path: Path | None, environ: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    """``load``, and the origin of each value that is not a default, by its key (``queues.batch.grace``)."""
    layers = [_from_file(path) if path else {}, _from_environment(environ)]
    given = layers[0] | layers[1]
    origins = {key: origin for key, (_, origin) in given.items()}
    changes = [layer["queues"] for layer in layers if "queues" in layer]
    if changes and all(isinstance(change.value, dict) for change in changes):
        queues, of_queues = _merged_queues(changes)
        given["queues"] = given["queues"]._replace(value=queues)
        origins |= of_queues
    try:
        settings = Settings.model_validate({key: value for key, (value, _) in given.items()})
    except ValidationError as error:
        lines = [_problem(item["loc"], item["type"], item["msg"], given, origins) for item in error.errors()]
        raise SettingsError("\n".join(dict.fromkeys(lines))) from None
    return settings, origins


def _merged_queues(changes: Sequence[_Given]) -> tuple[dict[str, Any], dict[str, str]]:
    """The default queues with these changes applied in order: a map changes or adds a queue, null removes it,
    also from the ``preempts`` of other default queues. And the origin of each given value."""
    queues: dict[str, Any] = {
        name: queue.model_dump(exclude_defaults=True) for name, queue in DEFAULT_QUEUES.items()
    }
    origins: dict[str, str] = {}
    for change, origin in changes:
        for name, value in change.items():
            if value is None and name not in queues:
                raise SettingsError(
                    f"{origin}: queues.{name}: null removes a queue, but no queue has this name"
                )
            if value is None:
                del queues[name]
            elif isinstance(value, dict):
                queues[name] = queues.get(name, {}) | value
                origins |= {f"queues.{name}.{key}": origin for key in value}
            else:
                queues[name] = value
            origins[f"queues.{name}"] = origin
    for name in queues.keys() & DEFAULT_QUEUES.keys():
        if isinstance(queues[name], dict) and f"queues.{name}.preempts" not in origins:
            queues[name]["preempts"] = DEFAULT_QUEUES[name].preempts & queues.keys()
    return queues, origins


def _from_file(path: Path) -> dict[str, _Given]:
    try:
        documents = yaml_documents(FileReader(SETTINGS_FILE).read_text(path))
    except FileError as error:
        raise SettingsError(str(error)) from None
    except TextError as error:
        raise SettingsError(f"{path}: is not YAML: {error}") from None
    content = (documents[0] if documents else None) or {}
    if len(documents) > 1 or not isinstance(content, dict):
        raise SettingsError(f"{path}: expected 'key: value' lines, such as 'shortlist: 64'")
    for key, expected in API.items():
        if (value := content.pop(key, expected)) != expected:
            raise SettingsError(f"{path}: {key}: invalid value {value!r}; expected {expected}")
    return {key: _Given(value, str(path)) for key, value in content.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    given = {}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        key = variable.removeprefix(PREFIX).lower()
        if key in Settings.model_fields:
            given[key] = _Given(_scalar(environ[variable]), f"environment variable {variable}")
        elif not _SERVICE_LINK.search(variable):
            # Only a warning: other programs may set variables in this environment.
            _log.warning("environment variable %s is not a setting%s", variable, _nearest(key, prefix=PREFIX))
    return given


def _scalar(text: str) -> object:
    """``text`` as YAML. Numbers remain text: the model converts them, and 1.30 remains a version."""
    try:
        documents = yaml_documents(text, plain=lambda plain: None if plain in ("null", "~") else plain)
    except TextError:
        return text
    if len(documents) != 1:
        return text or None
    return None if documents[0] == "" else documents[0]


def _problem(
    loc: tuple[int | str, ...],
    kind: str,
    message: str,
    given: Mapping[str, _Given],
    origins: Mapping[str, str],
) -> str:
    key, place = str(loc[0]), ".".join(map(str, loc))
    value, origin = given[key]
    where = f"{origins.get(place, origin)}: {place}: "
    expected = f"; expected {Settings.model_fields[key].description}" if key in Settings.model_fields else ""
    if kind == "value_error":
        return where + message.removeprefix("Value error, ")
    if kind == "extra_forbidden":
        parts: dict[str, type[BaseModel]] = {"queues": Queue, "demand": ExpectedRequest, "windows": Window}
        part = parts.get(key, Settings)
        names = [field.alias or name for name, field in part.model_fields.items()]
        return f"{where}unknown setting{_nearest(str(loc[-1]), names)}"
    if len(loc) > 1:
        return where + message + expected
    return f"{where}invalid value {value!r}{expected}"


def _nearest(key: str, names: Iterable[str] = Settings.model_fields, prefix: str = "") -> str:
    near = difflib.get_close_matches(key, list(names), n=1)
    if not near:
        return ""
    return f"; did you mean {prefix + near[0].upper() if prefix else near[0]}?"
