"""Compiled expressions: each ``Program`` is a function, combined from those of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from extender.dra.cel.evaluation import Meter, Result, Unsupported, fail, length_of
from extender.dra.cel.operators import RELATIONS, decide
from extender.untrusted.limits import SELECTOR_DEPTH, STEP_TEXT, quoted

Variables: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class Scope:
    """The variables that a program can see, and the meter that it spends steps of."""

    variables: Variables
    meter: Meter

    def with_variable(self, name: str, value: object) -> Scope:
        """A scope with one more variable. Spends two steps."""
        self.meter.spend(2)
        return Scope({**self.variables, name: value}, self.meter)


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression or a part of one. ``depth`` is how deep its parts are nested."""

    run: Callable[[Scope], Result]
    depth: int = 1

    @classmethod
    def of(cls, run: Callable[[Scope], Result], *parts: Program) -> Program:
        """A program that runs these parts. Raises ``Unsupported`` if they are nested too deeply."""
        depth = 1 + max([part.depth for part in parts], default=0)
        if depth > SELECTOR_DEPTH:
            raise Unsupported("nested too deeply")
        return cls(run, depth)


def constant(value: object) -> Program:
    def run(scope: Scope) -> object:
        scope.meter.spend()
        return value

    return Program(run)


def variable(name: str) -> Program:
    def run(scope: Scope) -> Result:
        scope.meter.spend()
        return scope.variables[name] if name in scope.variables else fail(f"{quoted(name)} is not known")

    return Program(run)


def call(
    function: Callable[..., Any], *arguments: Program, cost: Callable[..., int] | None = None
) -> Program:
    """A function of the arguments' values. Spends two steps, and more for long values, or as many more as
    ``cost`` of (meter, values) returns."""
    runs = [argument.run for argument in arguments]

    def run(scope: Scope) -> Result:
        values = [run_argument(scope) for run_argument in runs]
        extra = cost(scope.meter, *values) if cost else length_of(*values) // STEP_TEXT
        scope.meter.spend(2 + extra)
        return function(*values)

    return Program.of(run, *arguments)


def member(function: Callable[[Any, str], Any], target: Program, name: str) -> Program:
    """A function of the target's value and of a name that is written in the expression."""
    run_target = target.run

    def run(scope: Scope) -> Result:
        scope.meter.spend()
        return function(run_target(scope), name)

    return Program.of(run, target)


def relation(sign: str, left: Program, right: Program) -> Program:
    relate, run_left, run_right = RELATIONS[sign], left.run, right.run

    def run(scope: Scope) -> bool:
        one, other = run_left(scope), run_right(scope)
        scope.meter.spend(1 + length_of(one, other) // STEP_TEXT)
        return relate(scope.meter, one, other)

    return Program.of(run, left, right)


def list_of(items: Sequence[Program]) -> Program:
    def run(scope: Scope) -> list[Result]:
        scope.meter.spend()
        return [item.run(scope) for item in items]

    return Program.of(run, *items)


def logical(sides: Sequence[Program], *, decisive: bool) -> Program:
    """``||`` if True is decisive, ``&&`` if False is."""

    def run(scope: Scope) -> bool:
        scope.meter.spend()
        return decide(sides, lambda side: side.run(scope), decisive=decisive)

    return Program.of(run, *sides)


def conditional(condition: Program, yes: Program, no: Program) -> Program:
    """``?:``. Only one side is evaluated."""

    def run(scope: Scope) -> Result:
        scope.meter.spend()
        value = condition.run(scope)
        return (yes if value else no).run(scope) if isinstance(value, bool) else fail("no condition")

    return Program.of(run, condition, yes, no)
