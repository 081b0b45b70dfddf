"""YAML and JSON that somebody else wrote, as plain values: the only reader of YAML in Stowage.

PyYAML's loaders build a tree by recursion in C, so deep nesting ends the process, and they follow aliases,
so a few lines become gigabytes. Only the parser of PyYAML is used here: it gives one event after the other,
and the values are made from these without recursion.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import yaml
from pydantic_core import from_json

from extender.untrusted.limits import YAML_DEPTH, shorten

Hook = Callable[[dict[str, Any]], object]
"""Takes each map as soon as it is complete and gives the value that stands in its place."""

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **{form(word): True for word in ("true", "yes", "on") for form in (str.lower, str.title, str.upper)},
    **{form(word): False for word in ("false", "no", "off") for form in (str.lower, str.title, str.upper)},
}
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?")
_LONGEST_NUMBER = 64
"""Characters. What is longer stays text."""
# libyaml compares every %TAG with all before it, which takes minutes for a megabyte of them. The first
# character of the pattern must be a plain one: Python then finds it fast.
_DIRECTIVE = re.compile(r"%(?<=[\n\r\x85\u2028\u2029\ufeff]%)")
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset({"!", *(_TAG + name for name in ("str", "binary", "timestamp"))})
_PLAIN_TAGS = frozenset(_TAG + name for name in ("null", "bool", "int", "float"))


class TextError(ValueError):
    """A text that is not read. The message says why in a few words, and quotes nothing of the text."""


def plain_value(text: str) -> object:
    """What an unquoted scalar stands for: null, a truth value, a number, or else the text itself.

    As in YAML 1.1, which Kubernetes reads, but times stay text, as do numbers to the base of 60.
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _LONGEST_NUMBER and text[0] in "+-.0123456789":
        try:
            if _INTEGER.fullmatch(text):
                return _integer(text.replace("_", ""))
            if _FLOAT.fullmatch(text):
                return float(text.replace("_", ""))
        except ValueError:
            return text  # nothing but underscores after its prefix
    return text


def yaml_documents(
    text: str,
    *,
    nodes: int | None = None,
    plain: Callable[[str], object] = plain_value,
    hook: Hook | None = None,
) -> list[Any]:
    """The documents of a YAML text; keys of maps are text, as written. Raises ``TextError``.

    ``nodes``: at most so many scalars, lists and maps. ``plain`` gives the value of an unquoted scalar.
    Anchors, aliases, merge keys, directives and tags of other types are refused.
    """
    if text.startswith("%") or _DIRECTIVE.search(text):
        raise TextError("directives (%) are not read")
    builder = _Builder(nodes, plain, hook)
    takes: dict[type[yaml.Event], Callable[[Any], None]] = {
        yaml.ScalarEvent: builder.scalar,
        yaml.AliasEvent: builder.alias,
        **dict.fromkeys((yaml.SequenceStartEvent, yaml.MappingStartEvent), builder.start),
        **dict.fromkeys((yaml.SequenceEndEvent, yaml.MappingEndEvent), builder.end),
    }
    try:
        for event in yaml.parse(text, _PARSER):
            if take := takes.get(type(event)):
                take(event)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        line = min(line, text.rstrip().count("\n"))  # libyaml sees one more line at the end
        raise TextError(shorten(f"{error.problem} (line {line + 1})", 100)) from None
    except (yaml.YAMLError, UnicodeEncodeError):
        raise TextError("a character that YAML does not allow") from None
    return builder.documents


def json_document(text: str, hook: Hook | None = None) -> Any:  # noqa: ANN401 (whatever JSON holds)
    """The value of a JSON text of any size, for files of the operator. Raises ``TextError``."""
    try:
        return json.loads(text, object_hook=hook)
    except RecursionError:
        raise TextError("lists and maps inside each other are too deep") from None
    except ValueError as error:
        raise TextError(shorten(str(error), 100)) from None


def bounded_json(text: str, nodes: int) -> Any:  # noqa: ANN401 (whatever JSON holds)
    """The value of a JSON text with at most so many values. Raises ``TextError``."""
    try:
        value = from_json(text)
    except ValueError as error:
        raise TextError(shorten(str(error), 100)) from None
    inside: list[Iterator[Any]] = [iter([value])]
    while inside:
        for one in inside[-1]:
            _check_left(nodes := nodes - 1)
            if isinstance(one, dict | list):
                inside.append(iter(one.values() if isinstance(one, dict) else one))
                _check_depth(len(inside) - 1)
                break
        else:
            inside.pop()
    return value


class _Open(NamedTuple):
    """A list or map that is not complete; of a map ``values`` has keys and values in turn."""

    values: list[Any]
    is_map: bool

    @property
    def wants_key(self) -> bool:
        return self.is_map and len(self.values) % 2 == 0


class _Builder:
    """Makes values from events. The list of documents is the outermost one of those that are open."""

    def __init__(self, nodes: int | None, plain: Callable[[str], object], hook: Hook | None) -> None:
        self._left, self._plain, self._hook = sys.maxsize if nodes is None else nodes, plain, hook
        self.documents: list[Any] = []
        self._inner = _Open(self.documents, False)
        self._outer: list[_Open] = []

    def scalar(self, event: yaml.ScalarEvent) -> None:
        self._check(event)
        value: object = event.value
        unquoted = event.implicit[0] or event.tag in _PLAIN_TAGS
        if self._inner.wants_key:
            if unquoted and value == "<<":
                raise TextError(f"merge keys (<<) are not read{_line(event)}")
        elif unquoted:
            value = self._plain(event.value)
        elif event.tag is not None and event.tag not in _TEXT_TAGS:
            raise TextError(f"this tag is not read{_line(event)}")
        self._inner.values.append(value)

    def start(self, event: yaml.CollectionStartEvent) -> None:
        self._check(event)
        if self._inner.wants_key:
            raise TextError(f"a key is not text{_line(event)}")
        is_map = isinstance(event, yaml.MappingStartEvent)
        if not event.implicit and event.tag != _TAG + ("map" if is_map else "seq"):
            raise TextError(f"this tag is not read{_line(event)}")
        self._outer.append(self._inner)
        self._inner = _Open([], is_map)
        _check_depth(len(self._outer))

    def end(self, event: yaml.CollectionEndEvent) -> None:
        values, is_map = self._inner
        made: object = values
        if is_map:
            made = dict(zip(values[::2], values[1::2], strict=True))
            made = self._hook(made) if self._hook else made
        self._inner = self._outer.pop()
        self._inner.values.append(made)

    def alias(self, event: yaml.AliasEvent) -> None:
        raise TextError(f"aliases are not read{_line(event)}")

    def _check(self, event: yaml.NodeEvent) -> None:
        if event.anchor is not None:
            raise TextError(f"anchors are not read{_line(event)}")
        self._left -= 1
        _check_left(self._left)


def _line(event: yaml.Event) -> str:
    return f" (line {event.start_mark.line + 1})" if event.start_mark else ""


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    base = {"0b": 2, "0x": 16}.get(digits[:2], 8 if digits.startswith("0") else 10)
    return int(text, base)


def _check_depth(depth: int) -> None:
    if depth > YAML_DEPTH:
        raise TextError(f"lists and maps are more than {YAML_DEPTH} deep")


def _check_left(values: int) -> None:
    if values < 0:
        raise TextError("there are too many values")
