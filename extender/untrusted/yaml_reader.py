"""A reader of untrusted YAML and JSON as plain values. Nothing else in Stowage reads YAML.

PyYAML's loaders are not safe for this: they build a tree by recursion in C, so deep nesting crashes the
process, and they resolve aliases, so a few lines expand to gigabytes. This reader processes the events of
PyYAML's parser one by one and builds the values without recursion, in a third of the time of PyYAML's C
loader and without its tree. An alias costs as much as the value that it stands for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import yaml
from pydantic_core import from_json

from extender.untrusted.limits import YAML_DEPTH, shorten

Hook = Callable[[dict[str, Any]], object]
"""Called with each map as soon as it is complete. Returns the value to use in its place."""

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **{form(word): True for word in ("true", "yes", "on") for form in (str.lower, str.title, str.upper)},
    **{form(word): False for word in ("false", "no", "off") for form in (str.lower, str.title, str.upper)},
}
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?")
_LONGEST_NUMBER = 64
"""Maximum number of characters. A longer number remains text."""
# libyaml compares every %TAG with all earlier ones, which takes minutes for a megabyte of them. The pattern
# begins with a literal character because Python then searches fast.
_DIRECTIVE = re.compile(r"%(?<=[\n\r\x85\u2028\u2029\ufeff]%)")
_TAG = "tag:yaml.org,2002:"
_MERGE = object()
"""Stands for the key ``<<`` of an incomplete map."""
_TEXT_TAGS = frozenset({None, "!", *(_TAG + name for name in ("str", "binary", "timestamp"))})
_PLAIN_TAGS = frozenset(_TAG + name for name in ("null", "bool", "int", "float"))


class TextError(ValueError):
    """The text is rejected. The message states the reason in a few words, and does not quote the text."""


def plain_value(text: str) -> object:
    """The value of an unquoted scalar: None, a boolean, a number, otherwise the text itself.

    As in YAML 1.1, which Kubernetes uses, except that times and base-60 numbers remain text.
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _LONGEST_NUMBER and text[0] in "+-.0123456789":
        try:
            if _INTEGER.fullmatch(text):
                number = text.replace("_", "")
                digits = number.lstrip("+-")
                base = {"0b": 2, "0x": 16}.get(digits[:2], 8 if digits.startswith("0") else 10)
                return int(number, base)
            if _FLOAT.fullmatch(text):
                return float(text.replace("_", ""))
        except ValueError:
            return text  # only underscores after the prefix
    return text


def yaml_documents(
    text: str,
    *,
    nodes: int | None = None,
    plain: Callable[[str], object] = plain_value,
    hook: Hook | None = None,
) -> list[Any]:
    """The documents of a YAML text. Keys of maps remain text. Raises ``TextError``.

    ``nodes``: the limit on scalars, lists and maps; without it, anchors, aliases and merge keys are rejected.
    ``plain`` returns the value of an unquoted scalar. Directives, and tags other than those of plain values,
    are rejected.
    """
    if text.startswith("%") or _DIRECTIVE.search(text):
        raise TextError("directives (%) are not allowed")
    builder = _Builder(nodes, plain, hook)
    try:
        for event in yaml.parse(text, _PARSER):
            builder.add_event(event)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        line = min(line, text.rstrip().count("\n"))  # libyaml counts one more line at the end
        raise TextError(shorten(f"{error.problem} (line {line + 1})", 100)) from None
    except (yaml.YAMLError, UnicodeEncodeError):
        raise TextError("the text has a character that YAML does not allow") from None
    return builder.documents


def bounded_json(text: str, nodes: int) -> Any:  # noqa: ANN401 (whatever JSON holds)
    """The value of a JSON text with at most ``nodes`` scalars, lists and maps. Raises ``TextError``."""
    try:
        document = from_json(text)
    except ValueError as error:
        raise TextError(shorten(str(error), 100)) from None
    _left_after(document, nodes, 0)
    return document


class _Collection(NamedTuple):
    """An incomplete list or map. In a map, ``values`` alternates between keys and values."""

    values: list[Any]
    is_map: bool
    anchor: str | None = None

    @property
    def wants_key(self) -> bool:
        return self.is_map and len(self.values) % 2 == 0


class _Builder:
    """Builds values from events. The list of documents is the outermost collection."""

    def __init__(self, nodes: int | None, plain: Callable[[str], object], hook: Hook | None) -> None:
        self._left, self._plain, self._hook = sys.maxsize if nodes is None else nodes, plain, hook
        self._takes_aliases = nodes is not None
        self._anchors: dict[str, object] = {}
        self.documents: list[Any] = []
        self._inner = _Collection(self.documents, False)
        self._outer: list[_Collection] = []

    def add_event(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.CollectionEndEvent):
            self._end_collection()
        elif isinstance(event, yaml.AliasEvent):
            self._add_alias(event)
        elif isinstance(event, yaml.NodeEvent):
            if event.anchor is not None and not self._takes_aliases:
                raise _refused("anchors are not allowed", event)
            self._left = _one_less(self._left)
            if isinstance(event, yaml.CollectionStartEvent):
                self._begin_collection(event)
            elif isinstance(event, yaml.ScalarEvent):
                self._add_scalar(event)

    def _add_scalar(self, event: yaml.ScalarEvent) -> None:
        value: object = event.value
        unquoted = event.implicit[0] or event.tag in _PLAIN_TAGS
        if not unquoted and event.tag not in _TEXT_TAGS:
            raise _refused("this tag is not allowed", event)
        if unquoted and not self._inner.wants_key:
            value = self._plain(event.value)
        elif unquoted and value == "<<":
            if not self._takes_aliases:
                raise _refused("merge keys (<<) are not allowed", event)
            return self._inner.values.append(_MERGE)
        self._add(value, event.anchor)

    def _begin_collection(self, event: yaml.CollectionStartEvent) -> None:
        if self._inner.wants_key:
            raise _refused("a key is not a string", event)
        is_map = isinstance(event, yaml.MappingStartEvent)
        if not event.implicit and event.tag != _TAG + ("map" if is_map else "seq"):
            raise _refused("this tag is not allowed", event)
        self._outer.append(self._inner)
        self._inner = _Collection([], is_map, event.anchor)
        _check_depth(len(self._outer))

    def _end_collection(self) -> None:
        values, is_map, anchor = self._inner
        collection: object = values
        if is_map:
            members = _members(values[::2], values[1::2])
            collection = self._hook(members) if self._hook else members
        self._inner = self._outer.pop()
        self._add(collection, anchor)

    def _add_alias(self, event: yaml.AliasEvent) -> None:
        if not self._takes_aliases:
            raise _refused("aliases are not allowed", event)
        if event.anchor not in self._anchors:
            raise _refused("an alias to an incomplete value", event)
        value = self._anchors[event.anchor]
        if self._inner.wants_key and not isinstance(value, str):
            raise _refused("a key is not a string", event)
        self._left = _left_after(value, self._left, len(self._outer))
        self._inner.values.append(value)

    def _add(self, value: object, anchor: str | None) -> None:
        self._inner.values.append(value)
        if anchor is not None:
            self._anchors[anchor] = value


def _members(keys: list[Any], values: list[Any]) -> dict[str, Any]:
    """The members of a map. Its own take precedence over merged ones, and earlier merged ones over later
    ones."""
    own = {key: value for key, value in zip(keys, values, strict=True) if key is not _MERGE}
    for merged in (value for key, value in zip(keys, values, strict=True) if key is _MERGE):
        for other in merged if isinstance(merged, list) else [merged]:
            if not isinstance(other, dict):
                raise TextError("a merge key (<<) requires a map or a list of maps")
            own = other | own
    return own


def _left_after(value: object, left: int, depth: int) -> int:
    """Remaining number of scalars, lists and maps after those of a value, which is nested this deep."""
    unread: list[Iterator[object]] = [iter([value])]
    while unread:
        for item in unread[-1]:
            left = _one_less(left)
            if isinstance(item, dict | list):
                parts: Iterable[object] = [*item, *item.values()] if isinstance(item, dict) else item
                unread.append(iter(parts))
                _check_depth(depth + len(unread) - 1)
                break
        else:
            unread.pop()
    return left


def _one_less(left: int) -> int:
    if left <= 0:
        raise TextError("there are too many values")
    return left - 1


def _check_depth(depth: int) -> None:
    if depth > YAML_DEPTH:
        raise TextError(f"lists and maps are nested more than {YAML_DEPTH} deep")


def _refused(problem: str, event: yaml.Event) -> TextError:
    return TextError(f"{problem} (line {event.start_mark.line + 1})" if event.start_mark else problem)
