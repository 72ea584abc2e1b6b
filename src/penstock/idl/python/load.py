"""Contracts at run time: the code that `generate` makes, imported without a file.

    shop = load("contracts/shop.frugal")
    order = shop.Order(id=7)

Rules: same code as in files, so types, checks and wire are the same. The modules get a name that is a hash of their
text: a contract that is loaded again is the same module, and two versions of one live beside each other. An included
file is an attribute of the module, by its name in the contract. Static checkers know nothing of such a module; for
them, write files.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.util import spec_from_loader
from types import CodeType, ModuleType
from typing import Any

from penstock.idl.annotations import near_misses
from penstock.idl.files import FileReader, texts
from penstock.idl.linker import link
from penstock.idl.mistakes import IdlWarning
from penstock.idl.model import Program
from penstock.idl.python.generate import generate, packages_of

_PREFIX = "penstock_contract_"
_HASH_DIGITS = 24


def load(path: str | os.PathLike[str], *, roots: Sequence[str | os.PathLike[str]] = ()) -> ModuleType:
    """Return the module of a `.frugal` or `.thrift` file.

    `roots`: folders in which includes are looked for and which they never leave; none: the folder of the file.
    IdlError: the mistakes of the file and its includes. IdlWarning: an annotation that is likely mistyped.
    """
    file = os.fspath(path)
    folders = [os.fspath(each) for each in roots] or [os.path.dirname(file)]
    program = link(file, FileReader(folders), folders)
    _warn(program)
    return load_program(program)


def load_text(text: str, *, file: str = "contract.frugal", files: Mapping[str, str] | None = None) -> ModuleType:
    """Return the module of a contract's text. `file`: its name, `files`: the texts of included files by their paths."""
    program = link(file, texts({**(files or {}), file: text}))
    _warn(program)
    return load_program(program)


def _warn(program: Program) -> None:
    """Warn the caller of `load` or `load_text` of annotations that are likely mistyped."""
    for each in near_misses(program.closure()):
        warnings.warn(str(each), IdlWarning, stacklevel=3)


def load_program(program: Program) -> ModuleType:
    """Return the module of a linked program. IdlError: what cannot be in Python."""
    content = generate(program)
    digest = hashlib.sha256(repr((program.document.file, sorted(content.items()))).encode("utf-8", "surrogatepass"))
    prefix = f"{_PREFIX}{digest.hexdigest()[:_HASH_DIGITS]}"
    packages = packages_of(program, prefix=prefix)
    files = {_module_name(path): text for path, text in generate(program, prefix=prefix).items()}
    finder = _Texts(files)
    sys.meta_path.append(finder)
    try:
        # The import system takes care of threads, of modules that fail, and of those that are there already.
        modules = {file: importlib.import_module(package) for file, package in packages.items()}
    finally:
        sys.meta_path.remove(finder)
    for each in program.closure():
        module = modules[each.document.file]
        for name, included in each.includes.items():
            if not hasattr(module, name):
                setattr(module, name, modules[included.document.file])
    return modules[program.document.file]


def _module_name(path: str) -> str:
    return path.removesuffix("/__init__.py").replace("/", ".")


class _Texts(MetaPathFinder, InspectLoader):
    """Finds and loads packages whose texts are given. Tracebacks show their lines."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        return spec_from_loader(fullname, self, is_package=True) if fullname in self._files else None

    def get_source(self, fullname: str) -> str:
        return self._files[fullname]

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._files[fullname], f"{fullname.replace('.', '/')}/__init__.py")

    def is_package(self, fullname: str) -> bool:
        return fullname in self._files
