"""What a `Nats-TTL` and a `Nats-Rollup` say: as JetStream reads them, in both modes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.batch.codec import LAYOUT
from tests import hot_modes
from tests.extent import examples
from tests.groups import Columns, encoded

SECONDS = {
    "1": 1,
    "001": 1,
    "90": 90,
    "1s": 1,
    "1.999s": 1,
    "+1s": 1,
    "1500ms": 1,
    ".5m": 30,
    "1.m": 60,
    "1h30m5s": 5_405,
    "1h1h": 7_200,
    "2000000us": 2,
    "2000000\u00b5s": 2,
    "2000000\u03bcs": 2,
    "1000000000ns": 1,
    "0.99999999h": 3_599,
    "9000000000": limits.TTL_S_MAX,
    "2500000h": limits.TTL_S_MAX,
}
NONE = ("", "  ", "00", "0000")
NEVER = ("never", "NEVER", "Never")
BAD = (
    "0", "0s", "999ms", "0.9s", "-1s", "-1", "+1", "+", "-", "1 s", "s", "h", ".", ".s", "1.2.3s", "1x", "1hs", "1d",
    "1e3", "one", "nevermore", "neve", "nev\u00e9r", "9000000001", "2500001h", "99999999999999999999",
    "99999999999999999999s", "2500000h2500000h", "1\u00b5", "\u00b5s",
)  # fmt: skip


def rows_in(mode: Any, values: list[str], name: str = "Nats-TTL", others: str = "") -> Any:
    blocks = [f"NATS/1.0\r\n{others}{name}:{value}\r\n\r\n".encode() for value in values]
    count = len(blocks)
    data = encoded(Columns([b"s"] * count, None, [b""] * count, blocks), base_offset=0, timestamp_us=0, leader_epoch=1)
    return mode("rows").BatchRows(bytes(data), LAYOUT)


MODES = pytest.mark.parametrize("mode", [hot_modes.running, hot_modes.plain])


def lifetimes_us(rows: Any, least_us: int = 0, shortest_us: int = 0, longest_us: int = 0) -> list[int]:
    return memoryview(rows.lifetimes_us(least_us, shortest_us, longest_us)).cast("q").tolist()


@MODES
def test_times_to_live(mode: Any) -> None:
    rows = rows_in(mode, [*SECONDS, *NONE, *NEVER])
    assert lifetimes_us(rows) == [1_000_000 * seconds for seconds in SECONDS.values()] + [0] * len([*NONE, *NEVER])
    assert not rows.asked().is_bad
    for value in (*SECONDS, *NEVER):
        assert rows_in(mode, [value]).asked().has_ttls, value
    assert not rows_in(mode, list(NONE)).asked().has_ttls


@MODES
@pytest.mark.parametrize("value", BAD)
def test_what_is_none(mode: Any, value: str) -> None:
    rows = rows_in(mode, ["5", value])
    assert rows.asked().is_bad
    assert lifetimes_us(rows) == [5_000_000, 0]


@MODES
def test_a_message_with_an_id_lives_as_long_as_the_id_counts(mode: Any) -> None:
    assert lifetimes_us(rows_in(mode, ["5", "500", "", "never"], others="Nats-Msg-Id: x\r\n"), 60_000_000) == [
        60_000_000, 500_000_000, 0, 0,
    ]  # fmt: skip
    assert lifetimes_us(rows_in(mode, ["5"], others="Nats-Msg-Ids: x\r\n"), 60_000_000) == [5_000_000]


@MODES
def test_rollups(mode: Any) -> None:
    values = ["sub", "all", "SUB", "All", "", " "]
    rows = rows_in(mode, values, "Nats-Rollup")
    assert bytes(rows.rollups()) == bytes([1, 2, 1, 2, 0, 0])
    asked = rows.asked()
    assert (asked.has_rollups, asked.rollup_row, asked.is_bad, asked.has_ttls) == (True, 3, False, False)
    assert rows_in(mode, ["all"], "Nats-Rollup").asked()[2:] == (False, 0, False)
    for value in ("some", "su", "suball", "s\u00fcb"):
        wrong = rows_in(mode, [value], "Nats-Rollup")
        assert wrong.asked()[2:] == (False, -1, True)
        assert bytes(wrong.rollups()) == bytes([0])


@hot_modes.needs_compiled
@given(st.lists(st.text("0019.hmsnu+-\u00b5 never", max_size=12), min_size=1, max_size=5))
@settings(max_examples=examples(300))
def test_both_modes_read_the_same(values: list[str]) -> None:
    compiled, plain = (rows_in(mode, values) for mode in (hot_modes.running, hot_modes.plain))
    assert tuple(compiled.asked()) == tuple(plain.asked())
    assert compiled.lifetimes_us(7, 3, 9) == plain.lifetimes_us(7, 3, 9)
