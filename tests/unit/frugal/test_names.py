"""The public names of typed services."""

from __future__ import annotations

import subprocess
import sys
from types import FunctionType

import pytest

from penstock import frugal


def test_each_name_is_imported_on_first_use() -> None:
    assert dir(frugal) == sorted(frugal.__all__)
    for name in frugal.__all__:
        found = getattr(frugal, name)
        if isinstance(found, type | FunctionType):
            assert found.__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Contxt'"):
        frugal.Contxt  # noqa: B018


def test_the_package_alone_imports_neither_nats_nor_thrift() -> None:
    """`penstock idl compile` and a program that only loads contracts need not wait for them."""
    code = "import sys, penstock.frugal; print(sorted({'nats', 'thrift', 'h11', 'pyarrow'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
