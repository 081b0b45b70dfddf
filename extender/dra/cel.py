"""The part of CEL that selectors of devices are written in, evaluated exactly as kube-scheduler does.

Understood: literals, lists, ``device.driver``, ``device.attributes``, ``device.capacity`` and
``device.allowMultipleAllocations``, comparison, ``in``, ``&&``, ``||``, ``!``, ``?:``, ``+ - *``, ``has()``,
``cel.bind()``, ``.?`` with ``orValue``, and the functions of texts, quantities and versions in ``_METHODS``
and ``_FUNCTIONS``. Everything else is ``NotUnderstood`` when the expression is compiled.

Sources: the variables and their defaults in k8s.io/dynamic-resource-allocation ``cel/compile.go`` (v0.36.3),
the libraries ``quantity.go`` and ``semverlib.go`` of k8s.io/apiserver ``pkg/cel/library``, and, for what an
error does to ``&&``, ``||``, ``==`` and ``in``, cel-go v0.26.0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from extender.dra.values import Amount, Version, amount, version
from extender.quantity import QuantityError

_TOKEN = re.compile(
    r"""\s*(?:(?://[^\n]*\n?)|
    (?P<text>[rR]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))|
    (?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)|(?P<int>0x[0-9a-fA-F]+|\d+)|
    (?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[=!<>]=|\.\?|\[\?|[-+*/%!<>?:.,()\[\]{}]))""",
    re.VERBOSE | re.ASCII,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "`": "`", "?": "?"}
_LONGEST = 10 * 1024  # characters, by the API
_PATTERN = re.compile(
    r"(?:\(\?i\))?(?:[^\\(\[{]|\\[dwsDWSb.\\/+*?()|\[\]{}^$-]|\((?!\?)|\(\?:|\[\^?[\w .:/-]+\]|\{\d+\})*"
)
_MOST_STEPS = 1_000_000  # of a regular expression, at worst
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SUMS: Mapping[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class Unclear(Exception):
    """Nothing can be said about the device.

    Unclear
    +-- NotUnderstood   the expression uses what this file does not know
    +-- Failed          the evaluation ends in an error, also kube-scheduler's: it places the pod nowhere
    """


class NotUnderstood(Unclear):
    """See ``Unclear``."""


class Failed(Unclear):
    """See ``Unclear``."""


@dataclass(frozen=True, slots=True)
class _Maybe:
    """An optional value of CEL."""

    there: bool
    value: object = None


class _Defaulting(dict[str, Any]):
    """A map in which an absent key is an empty map: ``device.attributes`` and ``device.capacity``."""

    def __missing__(self, key: str) -> Mapping[str, Any]:
        return {}


Names: TypeAlias = Mapping[str, Any]
Result: TypeAlias = Any
"""A value of CEL: what it is shows only when it is there."""
Step: TypeAlias = Callable[[Names], Result]


def subject(
    driver: str,
    attributes: Mapping[str, Mapping[str, object]],
    capacity: Mapping[str, Mapping[str, Amount]],
    *,
    shared: bool = False,
) -> Names:
    """The variables of an expression for a device; attributes and capacities by domain and name."""
    fields = {
        "driver": driver,
        "attributes": _Defaulting(attributes),
        "capacity": _Defaulting(capacity),
        "allowMultipleAllocations": shared,
    }
    return {"device": fields}


@lru_cache(maxsize=1024)
def compiled(expression: str) -> Callable[[Names], bool]:
    """The selector as a function of a ``subject``, which raises ``Unclear``. Raises ``NotUnderstood``."""
    if len(expression) > _LONGEST:
        raise NotUnderstood(f"longer than {_LONGEST} characters")
    try:
        step = _Parser(expression).whole()
    except RecursionError:
        raise NotUnderstood("nested too deeply") from None

    def matches(names: Names) -> bool:
        result: object
        try:
            result = step(names)
        except RecursionError:
            raise Failed("nested too deeply") from None
        return result if isinstance(result, bool) else _fail("the result is not true or false")

    return matches


def _fail(why: str) -> NoReturn:
    raise Failed(why)


class _Parser:
    """Recursive descent over the grammar of CEL's language definition, to closures."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    def whole(self) -> Step:
        step = self._choice()
        if self._peek() != "":
            raise NotUnderstood(f"{self._peek()!r} where the expression should end")
        return step

    def _peek(self) -> str:
        return self._tokens[self._at][1]

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _takes(self, *signs: str) -> str:
        kind, text = self._tokens[self._at]
        if text in signs and (kind == "sign" or text == "in"):
            self._next()
            return text
        return ""

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise NotUnderstood(f"{self._peek()!r} instead of {sign!r}")

    def _choice(self) -> Step:
        condition = self._any()
        if not self._takes("?"):
            return condition
        yes = self._any()
        self._expect(":")
        no = self._choice()

        def choose(names: Names) -> Result:
            which = condition(names)
            return (yes if which else no)(names) if isinstance(which, bool) else _fail("no condition")

        return choose

    def _any(self) -> Step:
        step = self._all()
        while self._takes("||"):
            step = _logical(step, self._all(), decides=True)
        return step

    def _all(self) -> Step:
        step = self._relation()
        while self._takes("&&"):
            step = _logical(step, self._relation(), decides=False)
        return step

    def _relation(self) -> Step:
        step = self._sum()
        while sign := self._takes("==", "!=", "<", "<=", ">", ">=", "in"):
            step = _binary(_RELATIONS[sign], step, self._sum())
        return step

    def _sum(self) -> Step:
        step = self._product()
        while sign := self._takes("+", "-"):
            step = _binary(_arithmetic(sign), step, self._product())
        return step

    def _product(self) -> Step:
        step = self._unary()
        while sign := self._takes("*", "/", "%"):
            if sign != "*":
                raise NotUnderstood(f"operator {sign!r}")
            step = _binary(_arithmetic(sign), step, self._unary())
        return step

    def _unary(self) -> Step:
        if self._takes("!"):
            return _applied(_not, self._unary())
        if self._takes("-"):
            return _applied(_negative, self._unary())
        return self._member()

    def _member(self) -> Step:
        step = self._primary()
        while sign := self._takes(".", "[", ".?", "[?"):
            if sign.startswith("["):
                key = self._choice()
                self._expect("]")
                step = _binary(_optional if sign == "[?" else _index, step, key)
            elif sign == ".?":
                step = _binary(_optional, step, _constant(self._name()))
            else:
                step = self._field_or_method(step)
        return step

    def _field_or_method(self, target: Step) -> Step:
        name = self._name()
        if not self._takes("("):
            return _binary(_index, target, _constant(name))
        if name not in _METHODS:
            raise NotUnderstood(f"function {name!r}")
        arguments = self._until(")")
        count, method = _METHODS[name]
        if len(arguments) != count:
            raise NotUnderstood(f"{name}() with {len(arguments)} arguments")
        return lambda names: method(target(names), *[argument(names) for argument in arguments])

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise NotUnderstood(f"{text!r} instead of a name")
        return text

    def _until(self, end: str) -> list[Step]:
        found: list[Step] = []
        while not self._takes(end):
            found.append(self._choice())
            if not self._takes(","):
                self._expect(end)
                break
        return found

    def _primary(self) -> Step:
        kind, text = self._next()
        if kind == "text":
            return _constant(_unquoted(text))
        if kind == "int":
            return _constant(int(text, 0) if text[:2] == "0x" else int(text))
        if kind == "double":
            return _constant(float(text))
        if text == "(":
            step = self._choice()
            self._expect(")")
            return step
        if text == "[":
            items = self._until("]")
            return lambda names: [item(names) for item in items]
        if kind == "name":
            return self._named(text)
        raise NotUnderstood(f"{text!r}" if text else "it ends too early")

    def _named(self, name: str) -> Step:
        if name in ("true", "false"):
            return _constant(name == "true")
        if name == "cel" and self._takes("."):
            return self._bind()
        if self._takes("("):
            return self._present() if name == "has" else self._call(name)
        return lambda names: names[name] if name in names else _fail(f"{name} is not known")

    def _call(self, name: str) -> Step:
        arguments = self._until(")")
        if name not in _FUNCTIONS or len(arguments) != 1:
            raise NotUnderstood(f"function {name!r}")
        return _applied(_FUNCTIONS[name], arguments[0])

    def _bind(self) -> Step:
        if self._name() != "bind":
            raise NotUnderstood("a function of cel other than bind")
        self._expect("(")
        name = self._name()
        self._expect(",")
        value = self._choice()
        self._expect(",")
        body = self._choice()
        self._expect(")")
        return lambda names: body({**names, name: value(names)})

    def _present(self) -> Step:
        target = self._primary()
        name = ""
        while sign := self._takes(".", "["):
            if name:
                target = _binary(_index, target, _constant(name))
                name = ""
            if sign == "[":
                target = _binary(_index, target, self._choice())
                self._expect("]")
            else:
                name = self._name()
        self._expect(")")
        if not name:
            raise NotUnderstood("has() of what is no field")
        return lambda names: _has(target(names), name)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotUnderstood(f"{text[at : at + 10]!r}")
        if match.lastgroup:
            tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return [*tokens, ("end", "")]


def _unquoted(text: str) -> str:
    if text[0] in "rR":
        return text[2:-1]
    pieces = re.split(r"\\(.)", text[1:-1])
    if any(escape not in _ESCAPES for escape in pieces[1::2]):
        raise NotUnderstood(f"an escape in {text[:40]}")
    return "".join(_ESCAPES[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _constant(value: object) -> Step:
    return lambda names: value


def _applied(function: Callable[[Any], Any], argument: Step) -> Step:
    return lambda names: function(argument(names))


def _binary(function: Callable[[Any, Any], Any], left: Step, right: Step) -> Step:
    return lambda names: function(left(names), right(names))


def _logical(left: Step, right: Step, *, decides: bool) -> Step:
    """``||`` where True decides, ``&&`` where False does: what decides outweighs an error of the other."""

    def decide(names: Names) -> bool:
        values: list[object] = []
        for side in (left, right):
            try:
                values.append(side(names))
            except Failed as error:
                values.append(error)
            if values[-1] is decides:
                return decides
        for value in values:
            if isinstance(value, Failed):
                raise value
            if not isinstance(value, bool):
                _overload()
        return not decides

    return decide


def _overload(*_: object) -> NoReturn:
    raise Failed("no such overload")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Amount | Version):
        return bool(_key(one) == _key(other)) if type(one) is type(other) else _overload()
    if isinstance(one, _Maybe) or isinstance(other, _Maybe):
        raise NotUnderstood("comparison of optional values")
    return (type(one) is type(other) or (_number(one) and _number(other))) and one == other


def _unequal(one: object, other: object) -> bool:
    try:
        return not _equal(one, other)
    except Failed:
        return True


def _key(value: object) -> Result:
    return value.key if isinstance(value, Version) else value.number if isinstance(value, Amount) else None


def _ordered(sign: str) -> Callable[[Any, Any], bool]:
    compare = _ORDERS[sign]

    def order(one: object, other: object) -> bool:
        if (_number(one) and _number(other)) or (type(one) is type(other) and isinstance(one, str | bool)):
            return compare(one, other)
        _overload()

    return order


def _contained(value: object, container: object) -> bool:
    if isinstance(container, Mapping):
        return value in container if isinstance(value, str) else False
    if not isinstance(container, list):
        _overload()
    for item in container:
        try:
            if _equal(value, item):
                return True
        except Failed:
            continue
    return False


_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": _equal,
    "!=": _unequal,
    "in": _contained,
    **{sign: _ordered(sign) for sign in _ORDERS},
}


def _arithmetic(sign: str) -> Callable[[Any, Any], Any]:
    compute = _SUMS[sign]

    def combine(one: object, other: object) -> object:
        if type(one) is not type(other) or isinstance(one, bool):
            _overload()
        if isinstance(one, float) or (isinstance(one, str) and sign == "+"):
            return compute(one, other)
        return _int(compute(one, other)) if isinstance(one, int) else _overload()

    return combine


def _int(number: int) -> int:
    return number if -(2**63) <= number < 2**63 else _fail("integer overflow")


def _not(value: object) -> bool:
    return not value if isinstance(value, bool) else _overload()


def _negative(value: object) -> Result:
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else _overload()


def _index(container: object, key: object) -> Result:
    if isinstance(container, _Maybe):
        return _optional(container, key)
    if isinstance(container, Mapping):
        try:
            return container[key]
        except (KeyError, TypeError):
            raise Failed(f"no such key: {key}") from None
    if isinstance(container, list) and isinstance(key, int) and not isinstance(key, bool):
        return container[key] if 0 <= key < len(container) else _fail("index out of bounds")
    _overload()


def _optional(container: object, key: object) -> _Maybe:
    if isinstance(container, _Maybe):
        return _optional(container.value, key) if container.there else container
    if not isinstance(container, Mapping):
        _overload()
    if isinstance(container, _Defaulting):
        return _Maybe(True, container[str(key)])
    return _Maybe(True, container[key]) if key in container else _Maybe(False)


def _has(container: object, name: str) -> bool:
    if isinstance(container, _Defaulting):
        return True
    return name in container if isinstance(container, Mapping) else _overload()


def _or_value(maybe: object, other: object) -> Result:
    return (maybe.value if maybe.there else other) if isinstance(maybe, _Maybe) else _overload()


def _has_value(maybe: object) -> bool:
    return maybe.there if isinstance(maybe, _Maybe) else _overload()


def _of_texts(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*values: object) -> Result:
        return function(*values) if all(isinstance(value, str) for value in values) else _overload()

    return apply


def _compared(test: Callable[[int], Any]) -> Callable[[object, object], Any]:
    """Of two quantities or two versions: ``test`` of -1, 0 or 1."""

    def compare(one: object, other: object) -> Result:
        if not isinstance(one, Amount | Version) or type(one) is not type(other):
            _overload()
        left, right = _key(one), _key(other)
        return test((left > right) - (left < right))

    return compare


def _matches(text: str, pattern: str) -> bool:
    if not _harmless(pattern):
        raise NotUnderstood(f"the regular expression {pattern[:64]!r} is not understood")
    return re.search(pattern, text, re.ASCII) is not None


@lru_cache(maxsize=1024)
def _harmless(pattern: str) -> bool:
    """Whether a pattern means the same in RE2 and here, and cannot take long here."""
    if len(pattern) > 256 or not _PATTERN.fullmatch(pattern) or re.search(r"\)[*+?{]|[*+?}][*+?{]", pattern):
        return False
    bare = re.sub(r"\\.|\[[^]]*\]|\(\?[:i]", "", pattern)
    repeats, groups, choices = len(re.findall(r"[*+?{]", bare)), pattern.count("("), bare.count("|")
    try:
        re.compile(pattern)
    except re.error:
        return False
    return bool(65**repeats * (1 + choices) ** max(groups, 1) <= _MOST_STEPS)


def _lower(text: str) -> str:
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text)


def _upper(text: str) -> str:
    return "".join(chr(ord(c) - 32) if "a" <= c <= "z" else c for c in text)


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | list | Mapping) else _overload()


def _quantity(text: object) -> Amount:
    try:
        return amount(text) if isinstance(text, str) else _overload()
    except QuantityError as error:
        raise Failed(str(error)) from None


def _semver(text: object) -> Version:
    found = version(text) if isinstance(text, str) else None
    return found if found is not None else _fail("no semantic version")


def _as_integer(value: object) -> int:
    if isinstance(value, Amount) and value.number.denominator == 1:
        return int(value.number)
    _overload()


def _part(index: int) -> Callable[[object], int]:
    return lambda value: value.key[index] if isinstance(value, Version) else _overload()  # type: ignore[return-value]


_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {"quantity": _quantity, "semver": _semver, "size": _size}
_METHODS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "startsWith": (1, _of_texts(str.startswith)),
    "endsWith": (1, _of_texts(str.endswith)),
    "contains": (1, _of_texts(lambda text, part: part in text)),
    "matches": (1, _of_texts(_matches)),
    "lowerAscii": (0, _of_texts(_lower)),
    "upperAscii": (0, _of_texts(_upper)),
    "size": (0, _size),
    "compareTo": (1, _compared(lambda sign: sign)),
    "isGreaterThan": (1, _compared(lambda sign: sign > 0)),
    "isLessThan": (1, _compared(lambda sign: sign < 0)),
    "asInteger": (0, _as_integer),
    "major": (0, _part(0)),
    "minor": (0, _part(1)),
    "patch": (0, _part(2)),
    "orValue": (1, _or_value),
    "hasValue": (0, _has_value),
}
