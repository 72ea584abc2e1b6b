"""What `__audit` tells comes to users with rules, in one order; what is missing there is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.errors import ViolationError
from tests.sim.models.admin_model import Ruling, _folded
from tests.unit.sim.guarded_world import world


@pytest.fixture
def ruling() -> Iterator[Ruling]:
    made = world()._guests._ruling
    assert made is not None
    rows, acknowledged = [*made._rows], dict(made._acknowledged)
    yield made
    made._rows[:] = rows
    made._acknowledged.clear()
    made._acknowledged.update(acknowledged)


def test_what_is_told_comes_to_users_and_rules() -> None:
    rows = [
        {"index": 3, "act": "create_user", "user": "ann", "rules": ["admin"]},
        {"index": 4, "act": "create_user", "user": "bob", "rules": []},
        {"index": 5, "act": "create_stream", "stream": "orders"},
        {"index": 6, "act": "change_rules", "user": "*", "added": ["read on stream a"]},
        {
            "index": 7,
            "act": "change_rules",
            "user": "*",
            "added": ["read on stream b"],
            "dropped": ["read on stream a"],
        },
        {"index": 8, "act": "alter_user", "user": "ann", "added": ["main"]},
        {"index": 9, "act": "delete_user", "user": "bob"},
    ]
    assert _folded(rows) == {"ann": {"admin"}, "*": {"read on stream b"}}


def test_all_that_was_acknowledged_is_told(ruling: Ruling) -> None:
    assert len(ruling._acknowledged) > 3
    assert ruling._untold() == []
    ruling.check()


def test_an_act_that_is_not_told(ruling: Ruling) -> None:
    index = min(ruling._acknowledged)
    ruling._rows[:] = [row for row in ruling._rows if row["index"] != index]
    assert ruling._untold() == [index]
    ruling._rows.insert(0, {"index": index + 1, "after": index - 1, "act": "unknown"})
    assert ruling._untold() == []


def test_an_act_that_is_told_twice(ruling: Ruling) -> None:
    ruling._rows.append(ruling._rows[-1])
    with pytest.raises(ViolationError, match="in the order"):
        ruling._check_order()


def test_an_act_that_is_told_as_another(ruling: Ruling) -> None:
    ruling._acknowledged[ruling._rows[-1]["index"]] = ("delete_user", "u9")
    with pytest.raises(ViolationError, match="delete_user of 'u9'"):
        ruling.check()


def test_rules_that_brokers_have_and_nobody_was_told_of(ruling: Ruling) -> None:
    row = next(row for row in ruling._rows if row["act"] == "create_user" and len(row["rules"]) > 1)
    place = ruling._rows.index(row)
    ruling._rows[place] = {**row, "rules": ["admin", "another"]}
    with pytest.raises(ViolationError, match="tells"):
        ruling.check()
