"""Linker: a file and all that it includes become one `Program`, or an IdlError with the mistakes of all files.

Rules: each file is read once, however many include it. An include is looked for beside the file that names it, then
below each root, and never leaves the roots (`files`). Files that cannot be parsed or found are told together; the
meaning of names is checked (`checks`) when all files are there.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from penstock.idl import checks
from penstock.idl.files import Read, candidates
from penstock.idl.lexer import PROGRAM_TOKENS_MAX, TOKENS_MAX
from penstock.idl.mistakes import Mistakes
from penstock.idl.model import Document, Include, Position, Program, closure
from penstock.idl.parser import parse_into

FILES_MAX = 500
"""Most files of one program."""
INCLUDE_DEPTH_MAX = 64
"""Longest chain of files that include each other."""


def link(file: str, read: Read, roots: Sequence[str] = (), *, contradictions: Mistakes | None = None) -> Program:
    """Return the program of a file.

    `read`: gives the text of a file by its path, such as `FileReader(roots)` or `texts({…})`. `roots`: folders in which
    includes are looked for and which they never leave; none: the folder of `file`. `contradictions`: takes what
    annotations say and cannot be, which is a mistake without it. IdlError: all mistakes.
    """
    (program,) = link_all([file], read, roots or (posixpath.dirname(file),), contradictions=contradictions)
    return program


def link_all(
    files: Iterable[str], read: Read, roots: Sequence[str], *, contradictions: Mistakes | None = None
) -> list[Program]:
    """Return the programs of several files: what they share is read once, and the mistakes of all are one IdlError."""
    linking = _Linking(read, roots)
    found = [linking.root(posixpath.normpath(each)) for each in files]
    linking.mistakes.raise_if_any()
    programs = [each for each in found if each is not None]
    checks.check_all(closure(programs), linking.mistakes, contradictions)
    linking.mistakes.raise_if_any()
    return programs


def link_document(document: Document) -> Program:
    """Return the program of a document that includes nothing. IdlError: its mistakes, or that it includes something."""
    mistakes = Mistakes()
    for include in document.includes:
        mistakes.add(include.position, f'"{include.path}" cannot be included here')
    mistakes.raise_if_any()
    program = Program(document, {})
    checks.check(program, mistakes)
    mistakes.raise_if_any()
    return program


class _Linking:
    """The files of one run: which are read, and which chain of includes is being followed."""

    def __init__(self, read: Read, roots: Sequence[str]) -> None:
        self.mistakes = Mistakes()
        self._read = read
        self._roots = roots
        self._programs: dict[str, Program | None] = {}  # None: with mistakes, or not complete yet
        self._chain: list[str] = []
        self._tokens_left = PROGRAM_TOKENS_MAX

    def root(self, path: str) -> Program | None:
        """Read a file that a program is of, unless another one includes it."""
        if path in self._programs:
            return self._programs[path]
        try:
            text = self._read(path)
        except (OSError, UnicodeDecodeError) as error:
            self.mistakes.add(Position(path, 1, 1), f"the file cannot be read: {_reason(error)}")
            return None
        return self._program(path, text)

    def _program(self, path: str, text: str) -> Program | None:
        """Parse a file, and what it includes."""
        self._programs[path] = None
        document, tokens = parse_into(self.mistakes, text, path, min(TOKENS_MAX, self._tokens_left))
        self._tokens_left -= tokens
        if document is None:
            return None
        self._chain.append(path)
        included = {each.name: self._included(each, path) for each in document.includes}
        self._chain.pop()
        found = {name: program for name, program in included.items() if program is not None}
        if len(found) == len(included):
            self._programs[path] = Program(document, found)
        return self._programs[path]

    def _included(self, include: Include, including: str) -> Program | None:
        """Return the program that an include means; None: a mistake was noted."""
        try:
            paths = candidates(include.path, including, self._roots)
        except ValueError as error:
            self.mistakes.add(include.position, f"{include.path!r} cannot be included: {error}")
            return None
        if not paths:
            text = f"{include.path!r} leads out of the folders that are given ({', '.join(self._roots)})"
            self.mistakes.add(include.position, text)
            return None
        for path in paths:
            if path in self._programs:
                return self._known(include, path)
            if (limit := self._limit()) is not None:
                self.mistakes.add(include.position, limit)
                return None
            try:
                text = self._read(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, UnicodeDecodeError) as error:
                self._programs[path] = None
                self.mistakes.add(include.position, f"{path} cannot be read: {_reason(error)}")
                return None
            return self._program(path, text)
        self.mistakes.add(include.position, f"{include.path!r} is not there; looked for {', '.join(paths)}")
        return None

    def _limit(self) -> str | None:
        """Return why no further file is read, if so."""
        if len(self._programs) >= FILES_MAX:
            return f"the program has more than {FILES_MAX} files, the most of one"
        if len(self._chain) > INCLUDE_DEPTH_MAX:
            return f"this is the end of a chain of more than {INCLUDE_DEPTH_MAX} includes, the most"
        return None

    def _known(self, include: Include, path: str) -> Program | None:
        """Return the program of a file that was read already, unless the file includes itself."""
        if path in self._chain:
            chain = [*self._chain[self._chain.index(path) :], path]
            self.mistakes.add(include.position, f"files include each other in a circle: {' includes '.join(chain)}")
            return None
        return self._programs[path]


def _reason(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"its byte {error.start:,} is no UTF-8"
    return error.strerror or type(error).__name__
