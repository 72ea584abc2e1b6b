"""What is read is shared and cut without loss, and what options say is understood or refused."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.config import StreamConfig
from penstock.base.errors import ConfigError
from penstock.base.ids import LeaderEpoch, Offset, StreamId
from penstock.base.subjects import matches, overlap
from penstock.lake.reading.data_loss import DataLossError, check_there
from penstock.lake.reading.pieces import PIECE_BYTES, Piece, cut, lag_of, piece_of, share
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.selection import Selection
from penstock.messages import PartitionInfo, StreamInfo
from penstock.spark.options.options import seconds, sink_options, source_options
from penstock.spark.options.positions import Earliest, Moment, Offsets

KEY = Key("orders", 1)
COUNTS = st.dictionaries(st.builds(Key, st.sampled_from("abc"), st.integers(0, 3)), st.integers(0, 1_000))


@given(COUNTS, st.integers(1, 3_000))
def test_a_share_is_all_that_there_is_room_for(waiting: dict[Key, int], count_max: int) -> None:
    found = share(waiting, count_max)
    assert found.keys() == waiting.keys()
    assert all(found[key] <= count for key, count in waiting.items())
    assert sum(found.values()) == min(sum(waiting.values()), count_max)


def test_who_has_little_waiting_is_not_starved() -> None:
    assert share({Key("a", 0): 1_000_000, Key("b", 0): 1}, 10) == {Key("a", 0): 9, Key("b", 0): 1}


def piece(start: int, end: int, leader_epoch: int = 3, end_epoch: int = 5) -> Piece:
    return Piece("orders", 7, 1, start, end, leader_epoch, end_epoch)


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 60_000)), max_size=4),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 50_000),
    st.floats(0, 1e6),
)
def test_pieces_are_the_same_ranges(
    ranges: list[tuple[int, int]], partitions_min: int | None, records_max: int | None, row_bytes: float
) -> None:
    whole = [piece(start, start + rows)._replace(stream=f"s{number}") for number, (start, rows) in enumerate(ranges)]
    sizes = {Key(one.stream, 1): row_bytes for one in whole}
    found = cut(whole, sizes, partitions_min, records_max)
    for one in whole:
        parts = [part for part in found if part.stream == one.stream]
        assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
        if one.end > one.start:
            assert (parts[0].start, parts[-1].end) == (one.start, one.end)
            assert [part.leader_epoch for part in parts] == [3] + [5] * (len(parts) - 1)
        else:
            assert not parts
    assert all(part.end > part.start for part in found)
    if records_max is not None:
        assert all(part.end - part.start <= records_max for part in found)
    if partitions_min is not None:
        assert len(found) >= min(partitions_min, sum(rows for _, rows in ranges))


def test_a_large_range_is_cut_by_its_bytes() -> None:
    rows = 1_000_000
    found = cut([piece(0, rows)], {KEY: 4 * PIECE_BYTES / rows}, None, None)
    assert len(found) == 5
    assert max(one.end - one.start for one in found) == rows / 5


def info(log_start: int) -> StreamInfo:
    partitions = tuple(
        PartitionInfo(partition=number, leader_epoch=LeaderEpoch(5), log_start=Offset(log_start)) for number in (0, 1)
    )
    config = StreamConfig(name="orders", subject="orders.>")
    return StreamInfo(stream_id=StreamId(7), config=config, partitions=partitions)


@pytest.mark.parametrize(
    ("log_start", "expected"),
    [
        (0, piece(10, 20)),
        (10, piece(10, 20)),
        (11, piece(11, 20, leader_epoch=5)),
        (20, None),
        (99, None),  # nothing of it is there, and nothing behind it is read
    ],
)
def test_a_piece_begins_where_the_log_does(log_start: int, expected: Piece | None) -> None:
    assert piece_of(info(log_start), KEY, Position(10, 3), Position(20, 5), fail=False) == expected


def test_what_is_gone_is_an_error() -> None:
    with pytest.raises(DataLossError, match="messages 10 to 10 of stream orders, partition 1, are not in the log"):
        piece_of(info(11), KEY, Position(10, 3), Position(20, 5), fail=True)
    with pytest.raises(DataLossError, match="messages 10 to 19 of stream orders"):
        piece_of(info(99), KEY, Position(10, 3), Position(20, 5), fail=True)
    assert piece_of(info(99), KEY, Position(20, 3), Position(20, 5), fail=True) is None
    assert check_there(KEY, 5, 5, fail=True) == 5


TOKENS = ("a", "b", "*")


def test_patterns_overlap_if_a_subject_matches_both() -> None:
    patterns = [".".join(one) for length in (1, 2, 3) for one in product(TOKENS, repeat=length)]
    patterns += [f"{one}.>" for one in patterns if one.count(".") < 2] + [">"]
    subjects = [".".join(one) for length in (1, 2, 3, 4) for one in product("abc", repeat=length)]
    taken = {pattern: {one for one in subjects if matches(pattern, one)} for pattern in patterns}
    for one, other in product(patterns, repeat=2):
        assert overlap(one, other) == bool(taken[one] & taken[other]), (one, other)


def test_options_of_kafka_mean_what_they_mean_there() -> None:
    found = source_options(
        {
            "subscribe": "orders, events",
            "startingOffsets": '{"orders": {"0": 5, "1": -2}, "events": {"0": -1}}',
            "endingTimestamp": "1500",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "10",
            "includeHeaders": "true",
        }
    )
    assert found.selection == Selection(names=("orders", "events"))
    assert found.start == Offsets({"orders": {0: 5, 1: -2}, "events": {0: -1}})
    assert found.end == Moment(1_500, {}, latest_if_none=True)
    assert (found.fail_on_data_loss, found.max_offsets, found.group) == (False, 10, None)
    assert "headers" in found.columns
    assert source_options({"stream": "orders-*", "startingOffsets": "earliest"}).start == Earliest()


@pytest.mark.parametrize(
    ("given_options", "mistake"),
    [
        ({}, "stream: it is missing; give a stream's name, or"),
        ({"path": "orders"}, "stream: it is missing; give a stream's name as an option, load takes none, or"),
        ({"stream": "a", "kafka.bootstrap.servers": "x:1"}, "there is no such option; did you mean servers?"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "assign: subscribe is given, too"),
        ({"stream": "a", "startingOffset": "latest"}, "startingoffset: there is no such option; did you mean"),
        ({"stream": "a", "startingOffsets": '{"a": {"0": -3}}'}, "the offset -3 of a, partition 0, is negative"),
        ({"stream": "a", "startingOffsets": "[]"}, "startingOffsets"),
        ({"stream": "a", "startingOffsets": '{"a": {"id": 7, "offsets": {"x": 1}}}'}, "is not what a checkpoint"),
        ({"stream": "a", "startingOffsets": '{"a": {"id": 7, "offsets": {"0": 1}}, "b": {"0": 1}}'}, 'as {"orders"'),
        ({"stream": "a", "startingOffsets": "earliest", "startingTimestamp": "1"}, "startingOffsets is given, too"),
        ({"stream": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "it is more than"),
        ({"stream": "a", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"subscribePattern": "("}, "is no regular expression"),
        ({"stream": "a", "columns": "key,valu"}, "there is no column 'valu'"),
        ({"stream": "a", "subject": "a..b"}, "subject"),
        ({"assign": '{"a": ["0"]}'}, "is not JSON of a list of partitions"),
        ({"stream": "a", "failOnDataLoss": "perhaps"}, "failOnDataLoss"),
        ({"stream": "a", "timeout": "soon"}, "timeout"),
    ],
)
def test_what_is_wrong_with_options_is_said(given_options: dict[str, str], mistake: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source_options(given_options)
    assert mistake in str(caught.value)


def test_a_batch_write_is_named_whole_or_not_at_all() -> None:
    found = sink_options({"stream": "orders", "txnAppId": "nightly", "txnVersion": "7"})
    assert (found.stream, found.txn_app_id, found.txn_version) == ("orders", "nightly", 7)
    for half in ({"txnAppId": "nightly"}, {"txnVersion": "7"}):
        with pytest.raises(ConfigError, match="one is given without the other"):
            sink_options({"stream": "orders", **half})


@pytest.mark.parametrize(("text", "expected"), [("60s", 60.0), ("15m", 900.0), ("2500ms", 2.5)])
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


def test_lag_is_what_the_log_still_holds_behind_a_job() -> None:
    one, two = Key("orders", 0), Key("orders", 1)
    done, ends = {one: Position(40), two: Position(90), Key("gone", 0): Position(7)}, {one: Position(100)}
    assert lag_of(done, {}, ends) == 60
    assert lag_of(done, {one: 30, two: 0}, ends | {two: Position(90)}) == 60
    assert lag_of(done, {one: 75, two: 95}, ends | {two: Position(99)}) == 25 + 4
    assert lag_of(done, {one: 100}, ends) == lag_of(done, {}, {one: Position(39)}) == 0
