"""Plants faults in the product, one at a time, and counts how many of them the tests find.

``python -m tests.mutants --faults 50`` changes an operator, a number or a word of control flow in a copy of
the checkout and runs the tests there: first those that import the module with the fault, or one that imports
it, then those of its folder, then all (not with ``--near``). A fault that no test finds is printed as a diff:
it changes nothing, or a test is missing.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).parents[1]
AREAS = {
    "kernels": ["packing/**/*kernels.py", "extender/**/*kernels.py"],
    "verbs": ["extender/verbs/**/*.py"],
    "books": ["extender/cluster/**/*.py", "extender/queues/**/*.py"],
    "dialects": ["extender/dialects/**/*.py", "extender/inventory/**/*.py"],
}
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Continue: ast.Break,
}
NO_TEST_FAILED = 0  # pytest's exit code
ENDLESS_S = 600  # a run that takes longer hangs, which nobody overlooks


@dataclass(frozen=True)
class Fault:
    """One changed file: where, and its text before and after."""

    path: Path
    line: int
    before: str
    after: str

    def diff(self) -> str:
        lines = unified_diff(
            self.before.splitlines(), self.after.splitlines(), str(self.path), "fault", n=1, lineterm=""
        )
        return "\n".join(lines)


def changed(node: ast.AST) -> ast.AST | None:
    """The node with another meaning; None if it has none of the changes that are planted."""
    other = deepcopy(node)
    if isinstance(other, ast.Compare) and type(other.ops[0]) in SWAPPED:
        other.ops[0] = SWAPPED[type(other.ops[0])]()  # type: ignore[assignment]
    elif isinstance(other, ast.BoolOp | ast.BinOp) and type(other.op) in SWAPPED:
        other.op = SWAPPED[type(other.op)]()  # type: ignore[assignment]
    elif isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.Not):
        return other.operand
    elif isinstance(other, ast.Constant) and isinstance(other.value, bool):
        other.value = not other.value
    elif isinstance(other, ast.Constant) and isinstance(other.value, int):
        other.value += 1
    elif isinstance(other, ast.Continue):
        return ast.Break()
    else:
        return None
    return other


def faults_of(path: Path) -> Iterator[Fault]:
    """Every fault that can be planted in the bodies of the functions of a file."""
    text = (ROOT / path).read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    functions = (
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    for node in (inner for function in functions for part in function.body for inner in ast.walk(part)):
        other = changed(node)
        if other is None or not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None:
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + (node.end_col_offset or 0)
        raw = text.encode()
        source = f"({ast.unparse(other)})" if isinstance(other, ast.expr) else ast.unparse(other)
        yield Fault(path, node.lineno, text, (raw[:begin] + source.encode() + raw[end:]).decode())


def chosen(count: int, seed: int) -> list[Fault]:
    """As many faults of each area, from random places."""
    generator = random.Random(seed)
    found = []
    for number, globs in enumerate(AREAS.values()):
        paths = sorted({path.relative_to(ROOT) for glob in globs for path in ROOT.glob(glob)})
        possible = [fault for path in paths for fault in faults_of(path)]
        found += generator.sample(possible, (count + number) // len(AREAS))
    return found


def importers(path: Path, folders: Sequence[str]) -> list[Path]:
    """The files in these folders that import the module."""
    parent = ".".join(path.parts[:-1])
    imports = f"from {parent}.{path.stem} import", f"from {parent} import {path.stem}"
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    found = (file for file in files if any(words in file.read_text() for words in imports))
    return [file.relative_to(ROOT) for file in found]


def tests_near(path: Path) -> Iterator[list[str]]:
    """Tests that are likely to find a fault in a file: those that import it, or a module that does, then
    those of the folder that mirrors its own."""
    modules = [path, *importers(path, ["packing", "extender"])]
    tests = dict.fromkeys(str(test) for module in modules for test in importers(module, ["tests"]))
    if found := [test for test in tests if "/test_" in test and "/e2e/" not in test]:
        yield found
    folders = (f"tests/{folder}" for folder in path.parents if folder.name)
    if beside := next((folder for folder in folders if (ROOT / folder).is_dir()), None):
        yield [beside]


def exit_code(command: list[str], folder: Path, env: dict[str, str]) -> int | None:
    """Of a command that is ended with all its children after a time; then None."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        return process.wait(ENDLESS_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_found(copy: Path, fault: Fault, workers: str, *, near: bool) -> bool:
    """Whether a test fails in the copy with this fault."""
    target = copy / fault.path
    target.write_text(fault.after)
    try:
        for paths in [*tests_near(fault.path), *([] if near else [[]])]:
            options = ["-q", "-x", "-n", workers, "-p", "no:cacheprovider"]
            command = [sys.executable, "-m", "pytest", *options, *paths]
            env = {**os.environ, "PYTHONPATH": str(copy)}
            if exit_code(command, copy, env) != NO_TEST_FAILED:
                return True
        return False
    finally:
        target.write_text(fault.before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--faults", type=int, default=50, help="how many (50)")
    parser.add_argument("--seed", type=int, default=1, help="which (1)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="leave out as many of them (0)")
    parser.add_argument("--workers", default="auto", help="processes of pytest (auto)")
    parser.add_argument("--near", action="store_true", help="without the tests of other folders")
    options = parser.parse_args()
    faults = chosen(options.faults, options.seed)[options.first :]
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
        for number, fault in enumerate(faults, options.first):
            seen = is_found(copy, fault, options.workers, near=options.near)
            found += seen
            print(f"{number} {'found' if seen else 'NOT FOUND'} {fault.path}:{fault.line}", flush=True)
            if not seen:
                print(fault.diff(), flush=True)
    print(f"{found} of {len(faults)} faults found")


if __name__ == "__main__":
    main()
