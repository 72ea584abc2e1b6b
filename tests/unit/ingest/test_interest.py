"""The interest of an account: look-ups, bounds, watches."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.hot.interest import SHAPE_TOKENS_MAX, scan_interest
from penstock.ingest.interest import InterestTable


def _tell(table: InterestTable, *lines: str) -> None:
    data = b"".join(b"%b\r\n" % line.encode() for line in lines)
    assert scan_interest(data, 0, len(data), table.scanned) == len(data)


def _table(*lines: str, **bounds: int) -> InterestTable:
    table = InterestTable(**bounds)
    table.begun()
    _tell(table, *lines)
    table.snapshot_complete(0)
    return table


@pytest.mark.parametrize(
    ("key", "hit", "missed"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.c", "b"]),
        ("a.*", ["a.b", "a.*"], ["a", "a.b.c", "b.a"]),
        ("*.b", ["a.b", "x.b"], ["a.c", "b"]),
        ("a.>", ["a.b", "a.b.c"], ["a", "b.a"]),
        (">", ["a", "a.b"], []),
        ("*.>", ["a.b", "a.b.c"], ["a"]),
        ("a.*.c.*.e", ["a.1.c.2.e"], ["a.1.c.2.f", "a.1.c.2"]),
        ("_INBOX.22.*", ["_INBOX.22.x"], ["_INBOX.22", "_INBOX.22.x.y", "_INBOX.23.x"]),
        ("a>.b*", ["a>.b*"], ["a.b", "ax.bx"]),
    ],
)
def test_a_subject_is_found_by_each_kind_of_key(key: str, hit: list[str], missed: list[str]) -> None:
    table = _table(f"LS+ {key}", "LS+ unrelated", "LS+ other.*.x")
    assert [table.has_interest(subject.encode()) for subject in hit] == [True] * len(hit)
    assert [table.has_interest(subject.encode()) for subject in missed] == [False] * len(missed)
    _tell(table, f"LS- {key}")
    assert [table.has_interest(subject.encode()) for subject in hit] == [False] * len(hit)


def test_a_queue_group_is_a_key_of_its_own() -> None:
    table = _table("LS+ a.* workers 3")
    assert table.has_interest(b"a.b") is False
    assert table.has_interest(b"a.b", b"workers") is True
    assert table.has_interest(b"a.b", b"others") is False
    _tell(table, "LS+ a.* workers 2", "LS- a.* workers")
    assert table.has_interest(b"a.b", b"workers") is False
    assert len(table) == 0


def test_all_queue_groups_of_a_subject_are_told() -> None:
    table = _table("LS+ a.b", "LS+ a.b one 1", "LS+ a.* two 1", "LS+ a.> one 1", "LS+ a.b three 2", "LS+ b four 1")
    assert table.groups(b"a.b") == b"one three two"
    assert table.groups(b"a.b.c") == b"one"
    assert table.groups(b"c") == b""
    assert table.regrouped() is None
    assert table.regrouped() == []
    _tell(table, "LS- a.b one", "LS+ a.b three 1", "LS- a.* two", "LS- a.b")
    assert table.regrouped() == [b"a.b", b"a.*"]
    assert table.groups(b"a.b") == b"three one"
    _tell(table, "LS- a.b three", "LS- a.> one")
    assert table.groups(b"a.b") == b""
    table.ended()
    assert table.regrouped() == []
    table.begun()
    table.snapshot_complete(0)
    assert table.regrouped() is None


def test_names_of_queue_groups_are_bounded() -> None:
    names = [f"group-{number:03}" for number in range(100)]
    table = _table(*(f"LS+ a {name} 1" for name in names), *(f"LS+ * {name}x 1" for name in names))
    found = table.groups(b"a")
    assert len(found) <= limits.INTEREST_GROUPS_BYTES_MAX
    assert found.decode().split() == names[: len(found.split())]
    table.regrouped()
    _tell(table, *(f"LS+ b.{number} x 1" for number in range(limits.INTEREST_REGROUPED_MAX + 1)))
    assert table.regrouped() is None
    assert table.regrouped() == []


def test_nothing_is_known_without_a_complete_snapshot() -> None:
    table = InterestTable()
    assert table.has_interest(b"a") is None
    table.begun()
    _tell(table, "LS+ a")
    assert (table.has_interest(b"a"), table.has_interest(b"b")) == (True, None)
    table.snapshot_complete(0)
    assert table.has_interest(b"b") is False
    assert table.is_complete
    table.ended()
    assert (table.has_interest(b"a"), table.has_interest(b"b")) == (None, None)


def test_beyond_its_bounds_it_is_unknown_until_it_shrinks() -> None:
    table = _table(*(f"LS+ s.{number}" for number in range(10)), keys_max=8)
    assert len(table) == 8
    assert table.has_interest(b"s.7") is True
    assert table.has_interest(b"s.9") is None
    assert table.has_interest(b"never") is None
    assert not table.is_complete
    _tell(table, "LS- s.0", "LS- s.9")
    assert table.has_interest(b"never") is None  # s.8 is there, and not in the table
    _tell(table, "LS- s.8")
    assert table.has_interest(b"never") is False
    _tell(table, "LS+ s.11")
    assert table.has_interest(b"s.11") is True


def test_bytes_are_bounded_too() -> None:
    table = _table("LS+ " + "x" * 60, "LS+ " + "y" * 60, "LS+ z", size_bytes_max=100)
    assert table.scanned.size_bytes == 61
    assert table.has_interest(b"y" * 60) is None
    assert table.has_interest(b"z") is True


def test_a_queue_group_without_room_leaves_queue_groups_unknown() -> None:
    table = _table("LS+ a", "LS+ b q 1", "LS+ b q 2", keys_max=1)
    assert table.has_interest(b"b", b"q") is None
    assert table.has_interest(b"c") is False
    _tell(table, "LS- b q")
    assert table.has_interest(b"b", b"q") is None  # how often it was told is not known


def test_more_kinds_of_wildcards_than_are_looked_at_are_unknown() -> None:
    kinds = [".".join("*" if number >> bit & 1 else "a" for bit in range(8)) for number in range(1, 100)]
    table = _table(*(f"LS+ {kind}" for kind in kinds))
    assert len(table.scanned.shapes) == limits.INTEREST_SHAPES_MAX
    assert table.has_interest(b"b") is None
    _tell(table, *(f"LS- {kind}" for kind in kinds))
    assert table.has_interest(b"b") is False
    assert table.scanned.shapes == {}


def test_a_subject_with_too_many_tokens_is_unknown() -> None:
    long = ".".join("a" * (SHAPE_TOKENS_MAX + 1))
    table = _table(f"LS+ {long}.*")
    assert table.scanned.untracked == 1
    assert table.has_interest(b".".join([b"b"] * (SHAPE_TOKENS_MAX + 1))) is None
    _tell(table, f"LS- {long}.*", "LS+ a.>")
    assert table.has_interest(long.encode()) is True


def test_a_watched_subject_is_lost_once_nothing_holds_it() -> None:
    table = _table("LS+ _INBOX.a.*", "LS+ _INBOX.a.1")
    assert table.watch(b"_INBOX.a.1", 0)
    assert table.watch(b"_INBOX.a.2", 0)
    assert table.watch(b"_INBOX.a.2", 0)
    _tell(table, "LS- _INBOX.a.1")
    assert table.lost(1) == []
    _tell(table, "LS- _INBOX.a.*", "LS+ _INBOX.a.2")
    assert table.lost(2) == [b"_INBOX.a.1"]
    assert table.watched_count == 1
    _tell(table, "LS- _INBOX.a.2", "LS+ _INBOX.a.2")
    assert table.lost(3) == []  # it has come back within one read
    table.unwatch(b"_INBOX.a.2")
    _tell(table, "LS- _INBOX.a.2")
    assert table.lost(4) == []
    assert table.scanned.watched == {}


def test_a_subscription_may_become_known_a_little_later() -> None:
    table = _table()
    settle = limits.INTEREST_SETTLE_MS
    assert table.watch(b"late", 0)
    assert table.watch(b"never", 10)
    assert table.next_ms == settle
    _tell(table, "LS+ late")
    assert table.lost(settle) == []
    assert table.lost(settle + 9) == []
    assert table.lost(settle + 10) == [b"never"]
    assert table.next_ms is None
    _tell(table, "LS- late")
    assert table.lost(settle + 11) == [b"late"]


def test_a_watch_that_is_made_again_begins_anew() -> None:
    table = _table()
    assert table.watch(b"a", 0)
    table.unwatch(b"a")
    assert table.watch(b"a", limits.INTEREST_SETTLE_MS - 1)
    assert table.lost(limits.INTEREST_SETTLE_MS) == []
    assert table.lost(2 * limits.INTEREST_SETTLE_MS) == [b"a"]


def test_what_is_unknown_is_not_lost() -> None:
    table = _table("LS+ a", "LS+ b", keys_max=1)
    assert table.watch(b"b", 0)
    assert table.lost(limits.INTEREST_SETTLE_MS) == []
    _tell(table, "LS- b")
    assert table.lost(2 * limits.INTEREST_SETTLE_MS) == [b"b"]


def test_watches_outlive_a_connection() -> None:
    table = _table("LS+ kept", "LS+ gone")
    assert table.watch(b"kept", 0)
    assert table.watch(b"gone", 0)
    table.ended()
    assert table.watch(b"new", 0)
    assert table.lost(10 * limits.INTEREST_SETTLE_MS) == []
    table.begun()
    _tell(table, "LS+ kept")
    table.snapshot_complete(0)
    assert table.lost(limits.INTEREST_SETTLE_MS) == [b"gone", b"new"]
    _tell(table, "LS- kept")
    assert table.lost(limits.INTEREST_SETTLE_MS) == [b"kept"]


def test_watches_are_bounded() -> None:
    table = _table(watched_max=2)
    assert [table.watch(b"%d" % number, 0) for number in range(3)] == [True, True, False]
    table.unwatch(b"0")
    assert table.watch(b"2", 0)


def test_a_subscription_that_holds_many_is_settled_in_slices() -> None:
    table = _table("LS+ >", "LS+ a.*")
    count = 2 * limits.INTEREST_LOOKS_MAX + 10
    for number in range(count):
        assert table.watch(b"a.%d" % number, 0)
        assert table.watch(b"b.%d" % number, 0)
    _tell(table, "LS- >")
    lost = table.lost(1)
    assert len(lost) == limits.INTEREST_LOOKS_MAX
    assert table.next_ms == 0
    ended = next(one for one in (b"b.%d" % number for number in range(count)) if one not in lost)
    table.unwatch(ended)
    _tell(table, "LS- a.*", "LS+ a.0")
    while table.next_ms == 0:
        lost += table.lost(1)
    watched = {b"%c.%d" % (letter, number) for letter in b"ab" for number in range(count)}
    assert sorted(lost) == sorted(watched - {ended, b"a.0"})
    assert table.watched_count == 1
