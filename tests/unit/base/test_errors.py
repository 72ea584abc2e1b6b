"""Errors carry what their handler needs, and read well."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.base.errors import ConfigError, CorruptionError, ErrorCode, OperationalError, PenstockError, RemoteError
from penstock.idl.mistakes import Mistake
from penstock.idl.model import Position


def test_a_remote_error_has_a_stable_code_and_its_numbers() -> None:
    error = RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, "offset 9 is not there", log_start=1, log_end=5)
    assert error.code == "offset_out_of_range"
    assert type(error.code) is str
    assert error.details == {"log_start": 1, "log_end": 5}
    assert str(error) == "offset 9 is not there [offset_out_of_range]"


def test_a_code_of_a_newer_broker_stays_as_it_is() -> None:
    assert RemoteError("from_the_future", "?").code == "from_the_future"


def test_corruption_says_where_and_what() -> None:
    error = CorruptionError("0.arrows", 568, "CRC-32C 01", "02")
    assert str(error) == "0.arrows: at byte 568: expected CRC-32C 01, found 02"
    assert (error.file, error.position, error.expected, error.found) == ("0.arrows", 568, "CRC-32C 01", "02")


@pytest.mark.parametrize("kind", [RemoteError, OperationalError, ConfigError, CorruptionError])
def test_all_are_penstocks_and_none_is_another(kind: type[Exception]) -> None:
    assert issubclass(kind, PenstockError)
    others = {RemoteError, OperationalError, ConfigError, CorruptionError} - {kind}
    assert not any(issubclass(kind, other) for other in others)


def test_codes_are_their_own_names() -> None:
    assert all(code.value == code.name.lower() for code in ErrorCode)


def _import_what_defines_errors() -> None:
    root = Path(penstock.__path__[0])
    for path in sorted(root.rglob("*.py")):
        if re.search(
            r"^class \w+\(.*(Penstock|Operational|Remote|Config|Corruption)Error\b.*\):", path.read_text(), re.MULTILINE
        ):
            name = ".".join(("penstock", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(name)


def _classes_below(kind: type[PenstockError]) -> set[type[PenstockError]]:
    below = kind.__subclasses__()
    return set(below).union(*map(_classes_below, below))


def _is_loaded_once(kind: type[PenstockError]) -> bool:
    """False for a class of a second copy of its module: tests load the hot path compiled and plain."""
    return getattr(sys.modules[kind.__module__], kind.__qualname__, kind) is kind


def _argument(name: str, annotation: str) -> Any:
    if "Mistake" in annotation:
        return [Mistake(Position("a.frugal", 1, 2), "wrong"), Mistake(Position("a.frugal", 3, 4), "wrong")]
    if name == "mistakes":
        return ["a: wrong", "b: wrong"]
    return 7 if "int" in annotation else name


def _one_of(kind: type[PenstockError]) -> PenstockError:
    """An error of that class, with a value for each argument of its `__init__`."""
    if isinstance(kind.__init__, types.WrapperDescriptorType):
        return kind("what went wrong")
    given: dict[str, Any] = {}
    rest: list[Any] = []
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= {"offset": 9, "appended": [1, 2]}
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            rest.append(_argument(name, str(parameter.annotation)))
        elif parameter.kind is parameter.KEYWORD_ONLY:
            given[name] = f"{name} of it"
    return kind(*rest, **given)


def test_every_error_survives_pickle_and_copy() -> None:
    """A worker of a process pool hands its error to its parent by pickle: one that cannot be read ends the pool."""
    _import_what_defines_errors()
    kinds: set[type[PenstockError]] = {PenstockError, *_classes_below(PenstockError)}
    assert {RemoteError, ConfigError, CorruptionError, penstock.TimedOut, penstock.OutcomeUnknown} <= kinds
    broken = {}
    for kind in kinds:
        if not _is_loaded_once(kind):
            continue
        error = _one_of(kind)
        error.add_note("what to do")
        for way in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
            try:
                found = way(error)
            except Exception as failure:  # noqa: BLE001 (which are shown below)
                broken[kind.__qualname__] = repr(failure)
                continue
            same = (type(found), str(found), found.args, vars(found)) == (kind, str(error), error.args, vars(error))
            if not same:
                broken[kind.__qualname__] = repr((found.args, vars(found)))
    assert broken == {}
