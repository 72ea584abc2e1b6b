"""Which lines and branches of given code are run, counted by the interpreter's own tracing.

Rules: only lines within functions count: what an import runs is run anyway. Tracing sees plain Python only, so the
process has the hot path plain. A branch is a conditional jump of the bytecode from one line to two others.
"""

from __future__ import annotations

import ast
import dis
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tests.fuzz.target import Cover

Arc = tuple[str, int, int]
"""File, line, and the line that came next."""


class Wanted(NamedTuple):
    """What is to be run: lines, and arcs of branches."""

    lines: frozenset[tuple[str, int]]
    branches: frozenset[Arc]
    files: frozenset[str]


def wanted_of(covers: Iterable[Cover]) -> Wanted:
    """What these cover. ValueError: a name that is not there, so that no cover outlives what it covers."""
    lines: set[tuple[str, int]] = set()
    branches: set[Arc] = set()
    files: set[str] = set()
    for cover in covers:
        path = _path_of(cover.module)
        files.add(path)
        unknown = {*cover.names, *cover.but}
        text = Path(path).read_text()
        left_out = {(path, line) for line in _compiled_only(text)}
        for name, code in _functions(compile(text, path, "exec"), ""):
            if excluded := _named(name, cover.but):
                unknown -= excluded
                left_out |= {(path, line) for line in _lines_of(code)}
                continue
            chosen = _named(name, cover.names)
            unknown -= chosen
            if chosen or not cover.names:
                lines |= {(path, line) for line in _lines_of(code)}
                branches |= {(path, here, there) for here, there in _branches_of(code)}
        branches = {one for one in branches if not {(one[0], one[1]), (one[0], one[2])} & left_out}
        lines -= left_out
        if unknown:
            raise ValueError(f"{cover.module} has no {', '.join(sorted(unknown))}")
    return Wanted(frozenset(lines), frozenset(branches), frozenset(files))


def _compiled_only(text: str) -> Iterator[int]:
    """What plain Python never comes to: behind `if not cython.compiled:` that returns, in `if cython.compiled:`."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for inner in ast.walk(function):
            if isinstance(inner, ast.If) and ast.unparse(inner.test) == "cython.compiled":
                yield from range(inner.body[0].lineno, (inner.body[-1].end_lineno or 0) + 1)
        is_behind = False
        for statement in function.body:
            if is_behind:
                yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "not cython.compiled":
                is_behind = isinstance(statement.body[-1], ast.Return)


def _path_of(module: str) -> str:
    if module.startswith("penstock.hot."):
        import penstock.hot

        return str(Path(penstock.hot.__file__).parent / f"{module.rpartition('.')[2]}.py")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


def _named(name: str, among: Iterable[str]) -> set[str]:
    return {one for one in among if name == one or name.startswith(f"{one}.")}


def _functions(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    """Every function in it, by its qualified name; a comprehension has that of the function around it."""
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        name = constant.co_qualname.replace(".<locals>", "")
        if constant.co_flags & 0x02:  # CO_NEWLOCALS: a function, and no class body
            yield name, constant
        yield from _functions(constant, name)


def _lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}


_JUMPS = ("POP_JUMP_", "JUMP_IF_", "FOR_ITER")


def _branches_of(code: CodeType) -> Iterator[tuple[int, int]]:
    instructions = list(dis.get_instructions(code))
    lines: dict[int, int] = {}
    line = code.co_firstlineno
    for one in instructions:
        line = one.starts_line or line
        if one.positions is not None and one.positions.lineno is not None:
            line = one.positions.lineno
        lines[one.offset] = line
    for one, behind in pairwise(instructions):
        if not one.opname.startswith(_JUMPS):
            continue
        places = {lines[behind.offset], lines[one.argval]} - {lines[one.offset]}
        if len(places) == 2:
            for place in places:
                yield lines[one.offset], place


class Tracer:
    """Counts what runs in some files; see the module."""

    def __init__(self, files: frozenset[str]) -> None:
        self.arcs: set[Arc] = set()
        self._files = files

    def __enter__(self) -> Tracer:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in self._files:
            return None
        arcs, path, before = self.arcs, frame.f_code.co_filename, frame.f_lineno

        def stepped(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            nonlocal before
            if event == "line":
                arcs.add((path, before, frame.f_lineno))
                before = frame.f_lineno
            return stepped

        return stepped


def reached(arcs: Iterable[Arc], wanted: Wanted) -> tuple[set[tuple[str, int]], set[Arc]]:
    """Of what is wanted, what these arcs have run."""
    found = set(arcs)
    return {(path, line) for path, _, line in found} & wanted.lines, found & wanted.branches
