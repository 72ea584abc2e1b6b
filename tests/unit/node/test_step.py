"""A step is empty if it has nothing to do; a step that has anything is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.node import step as module
from penstock.node.step import Outbox, Step


class Odd:
    """A value that must not be compared."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]


def filled(field: msgspec.structs.FieldInfo) -> Any:
    kind = type(getattr(Step(), field.name))
    return [Odd()] if kind is list else "x" if kind is str else object()


@pytest.mark.parametrize("field", msgspec.structs.fields(Step), ids=lambda field: field.name)
def test_a_step_with_anything_is_not_empty(field: msgspec.structs.FieldInfo) -> None:
    assert not Step()
    assert Step(**{field.name: filled(field)})


def test_no_step_shares_its_lists_with_the_empty_one() -> None:
    outbox = Outbox()
    for field in msgspec.structs.fields(Step):
        if isinstance(value := getattr(outbox.step, field.name), list):
            value.append(Odd())
    assert outbox.take()
    assert not outbox.step
    assert not module._NOTHING
    assert not Step()
