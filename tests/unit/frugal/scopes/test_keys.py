"""Keys of messages: which field, as which bytes, and what is refused."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock.base import limits
from penstock.frugal.contracts import OperationType
from penstock.frugal.scopes.keys import MissingKeyError, key_of
from tests.unit.frugal.scopes.contract import PLACED, Customer, Order, order


class Color(IntEnum):
    RED = 3


def key(value: Any, *path: str) -> bytes | None:
    return key_of("Orders", OperationType("Placed", (12, None), key=path or ("field",)), SimpleNamespace(field=value))


def test_the_field_that_the_contract_names_is_the_key() -> None:
    assert key_of("Orders", PLACED, order(1, "ann")) == b"ann"
    assert key_of("Orders", OperationType("Placed", PLACED.spec), order(1)) is None


def test_a_field_whose_name_is_taken_in_python_has_an_underscore() -> None:
    operation = OperationType("Placed", PLACED.spec, key=("from",))
    assert key_of("Orders", operation, Order(from_="x")) == b"x"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("ß", "ß".encode()),
        (b"\xff\0", b"\xff\0"),
        (-12, b"-12"),
        (0, b"0"),
        (True, b"true"),
        (False, b"false"),
        (Color.RED, b"3"),
        (UUID(int=5), b"00000000-0000-0000-0000-000000000005"),
    ],
)
def test_values_as_keys(value: Any, found: bytes) -> None:
    assert key(value) == found


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (order(1, None), r"Orders\.Placed: the message has no key: customer is None, of its key customer\.id"),
        (Order(customer=Customer()), r"its field customer\.id is None"),
        (order(1, ""), r"the key customer\.id has 0 bytes"),
        (order(1, "x" * (limits.KEY_BYTES_MAX + 1)), r"bytes; a key has 1 to"),
    ],
)
def test_a_message_without_its_key_is_refused(message: Order, text: str) -> None:
    with pytest.raises(MissingKeyError, match=text):
        key_of("Orders", PLACED, message)


@pytest.mark.parametrize("value", [1.5, [1], {"a": 1}, order(1)])
def test_a_type_that_makes_no_key_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="makes no key"):
        key(value)


def test_a_contract_that_names_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match="has no field other"):
        key("x", "other")
