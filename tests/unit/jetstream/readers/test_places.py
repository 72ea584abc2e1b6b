"""Where readers begin, what they filter, and what they count; deletions, purges and limits meanwhile."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.ids import LeaderEpoch, Offset
from penstock.jetstream.conversations import Answered
from penstock.jetstream.readers import table
from penstock.jetstream.readers.config.reader_config import ReaderConfig
from penstock.jetstream.readers.feed import Pending
from penstock.jetstream.readers.starting import Start, start_of
from penstock.jetstream.readers.table import Readers
from penstock.messages import (
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    ListedSubject,
    ListSubjectsResponse,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.node.partition.partition import Shown
from tests.unit.jetstream.readers.gateways import ReaderBroker
from tests.unit.node.harness import START_US

S = 1_000_000_000  # ns


def started(**config: Any) -> ReaderBroker:
    """A broker with 9 messages on three subjects, one each second."""
    broker = ReaderBroker().start()
    broker.create("s", **config)
    for number in range(9):
        broker.publish(f"s.{'abc'[number % 3]}", b"%d" % number)
        broker.tick(1_000)
    return broker


def read(broker: ReaderBroker, **config: Any) -> tuple[int, list[tuple[int, int]]]:
    """What is pending at first; then sequences, each with what is pending behind it."""
    info = broker.consumer("s", "c", deliver_subject="inbox", **config)
    assert "error" not in info, info
    return info["num_pending"], [(one.stream_seq, one.pending) for one in broker.delivered("inbox")]


def counted(*sequences: int) -> tuple[int, list[tuple[int, int]]]:
    """These sequences, each with the number of those behind it."""
    total = len(sequences)
    return total, [(one, total - number) for number, one in enumerate(sequences, 1)]


PLACES: tuple[tuple[dict[str, Any], tuple[int, ...]], ...] = (
    ({}, (1, 2, 3, 4, 5, 6, 7, 8, 9)),
    ({"deliver_policy": "new"}, ()),
    ({"deliver_policy": "last"}, (9,)),
    ({"deliver_policy": "last", "filter_subject": "s.b"}, (8,)),
    ({"deliver_policy": "last", "filter_subjects": ["s.a", "s.b"]}, (8,)),
    ({"deliver_policy": "last", "filter_subject": "s.none"}, ()),
    ({"deliver_policy": "by_start_sequence", "opt_start_seq": 7}, (7, 8, 9)),
    ({"deliver_policy": "by_start_sequence", "opt_start_seq": 70}, ()),
    ({"deliver_policy": "by_start_time", "opt_start_time": "2023-11-14T22:13:27Z"}, (8, 9)),
    ({"deliver_policy": "by_start_time", "opt_start_time": "2023-11-14T22:13:26.002000001Z"}, (8, 9)),
    ({"deliver_policy": "by_start_time", "opt_start_time": "2023-11-14T23:13:26+01:00"}, (7, 8, 9)),
    ({"deliver_policy": "by_start_time", "opt_start_time": "2030-01-01T00:00:00Z"}, ()),
    ({"deliver_policy": "last_per_subject", "filter_subject": "s.>"}, (7, 8, 9)),
    ({"deliver_policy": "last_per_subject", "filter_subjects": ["s.a", "s.c"]}, (7, 9)),
    ({"deliver_policy": "last_per_subject", "filter_subject": "s.none"}, ()),
    ({"filter_subject": "s.b"}, (2, 5, 8)),
    ({"filter_subject": "s.*"}, (1, 2, 3, 4, 5, 6, 7, 8, 9)),
    ({"filter_subject": ">"}, (1, 2, 3, 4, 5, 6, 7, 8, 9)),
    ({"filter_subjects": ["s.c", "s.a"]}, (1, 3, 4, 6, 7, 9)),
    ({"filter_subject": "other"}, ()),
)


@pytest.mark.parametrize(("config", "expected"), PLACES, ids=[str(config) for config, _ in PLACES])
def test_readers_begin_where_they_are_told(config: dict[str, Any], expected: tuple[int, ...]) -> None:
    broker = started()
    assert read(broker, **config) == counted(*expected)
    broker.publish("s.b", b"new")
    found = [one.stream_seq for one in broker.delivered("inbox")]
    is_wanted = "b" in str(config.get("filter_subject", "s.b")) or config.get("filter_subject") in ("s.>", "s.*", ">")
    is_wanted = is_wanted and config.get("filter_subjects", ["s.b"])[-1:] == ["s.b"]
    assert found == ([10] if is_wanted and config.get("opt_start_seq") != 70 else [])


def test_the_time_of_a_message_is_that_of_its_commit() -> None:
    broker = started()
    broker.consumer("s", "c", deliver_subject="inbox")
    expected = [(START_US + 2_000 + n * 1_000_000) * 1_000 for n in range(9)]
    assert [one.stored_at_ns for one in broker.delivered("inbox")] == expected


def test_a_reader_may_begin_at_a_sequence_that_does_not_exist_yet() -> None:
    broker = started()
    assert read(broker, deliver_policy="by_start_sequence", opt_start_seq=12) == (0, [])
    for _ in range(4):
        broker.publish("s.a", b"new")
    assert [(one.stream_seq, one.consumer_seq, one.pending) for one in broker.delivered("inbox")] == [
        (12, 1, 0),
        (13, 2, 0),
    ]


def delete(broker: ReaderBroker, *sequences: int) -> None:
    offsets = tuple(one - 1 for one in sequences)
    request = DeleteMessagesRequest(stream_id=broker.stream_id("s"), offsets=offsets)
    broker.ask(request, DeleteMessagesResponse)


def test_deleted_messages_are_neither_sent_nor_counted() -> None:
    broker = started()
    delete(broker, 2, 9)
    assert read(broker) == counted(1, 3, 4, 5, 6, 7, 8)


def test_what_is_deleted_meanwhile_is_not_sent() -> None:
    broker = started()
    broker.consumer("s", "c")
    first = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 2})
    assert [one.pending for one in broker.delivered(first)] == [8, 7]
    delete(broker, 4, 9)
    assert broker.api("CONSUMER.INFO.s.c")["num_pending"] == 5
    rest = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 20})
    found = broker.delivered(rest)
    assert [(one.stream_seq, one.pending) for one in found] == [(3, 4), (5, 3), (6, 2), (7, 1), (8, 0)]
    assert [one.consumer_seq for one in found] == [3, 4, 5, 6, 7]


def test_a_count_of_before_a_deletion_is_made_anew() -> None:
    broker = started()
    broker.consumer("s", "c", filter_subject="s.*", inactive_threshold=60 * S)
    (readers,) = broker.gateway.parts
    assert isinstance(readers, Readers)
    state = broker.node.image.by_name("s")
    feed, reader = readers.feed(state), readers.find(state, "c")
    assert reader is not None
    assert feed.look() is not None
    counted_before = Pending(9, 9, feed.version)
    delete(broker, 4, 9)
    broker.publish("s.a", b"new")  # those who follow have seen the deletion
    readers.move(reader, Start(0), counted_before, broker.clock.now)
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 20})
    assert [(one.stream_seq, one.pending) for one in broker.delivered(inbox)] == counted(1, 2, 3, 5, 6, 7, 8, 10)[1]


@pytest.mark.parametrize("wanted", ["s.a", "s.b"])
def test_a_purge_of_a_subject_counts(wanted: str) -> None:
    broker = started()
    broker.consumer("s", "c", filter_subject=wanted)
    request = PurgeSubjectRequest(stream_id=broker.stream_id("s"), subject="s.a")
    broker.ask(request, PurgeSubjectResponse)
    expected = [] if wanted == "s.a" else [2, 5, 8]
    assert broker.api("CONSUMER.INFO.s.c")["num_pending"] == len(expected)
    rest = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 20})
    assert [one.stream_seq for one in broker.delivered(rest)] == expected


def test_a_truncated_log_is_read_on_from_its_new_start() -> None:
    broker = started()
    broker.consumer("s", "c")
    broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 2})
    broker.delivered()
    request = TruncateRequest(stream_id=broker.stream_id("s"), before=5)
    broker.ask(request, TruncateResponse)
    assert broker.api("CONSUMER.INFO.s.c")["num_pending"] == 4
    rest = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 20})
    assert [(one.stream_seq, one.pending) for one in broker.delivered(rest)] == [(6, 3), (7, 2), (8, 1), (9, 0)]


def test_a_truncated_tail_is_followed_on() -> None:
    broker = started()
    assert read(broker)[0] == 9
    broker.ask(TruncateRequest(stream_id=broker.stream_id("s"), before=9), TruncateResponse)
    broker.publish("s.a", b"new")
    broker.tick(200)
    assert [(one.stream_seq, one.pending) for one in broker.delivered("inbox")] == [(10, 0)]


def test_a_limit_by_subject_hides_what_is_pending() -> None:
    broker = started(max_messages_per_subject=1)
    assert read(broker, deliver_policy="last_per_subject", filter_subject="s.*") == counted(7, 8, 9)
    broker.consumer("s", "p")
    broker.publish("s.a", b"new")
    assert broker.api("CONSUMER.INFO.s.p")["num_pending"] == 3
    rest = broker.send("CONSUMER.MSG.NEXT.s.p", {"batch": 20})
    assert [(one.stream_seq, one.pending) for one in broker.delivered(rest)] == [(8, 2), (9, 1), (10, 0)]


def test_the_last_of_each_subject_is_skipped_if_it_is_deleted_meanwhile() -> None:
    broker = started()
    broker.consumer("s", "c", deliver_policy="last_per_subject", filter_subject="s.*")
    broker.publish("s.a", b"new")
    delete(broker, 8)
    assert broker.api("CONSUMER.INFO.s.c")["num_pending"] == 3
    rest = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 20})
    assert [(one.stream_seq, one.pending) for one in broker.delivered(rest)] == [(7, 2), (9, 1), (10, 0)]


def test_another_filter_counts_anew() -> None:
    broker = started()
    broker.consumer("s", "c", filter_subject="s.a")
    first = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 2})
    assert [one.stream_seq for one in broker.delivered(first)] == [1, 4]
    assert broker.consumer("s", "c", filter_subject="s.b")["num_pending"] == 2
    rest = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 20})
    assert [(one.stream_seq, one.pending) for one in broker.delivered(rest)] == [(5, 1), (8, 0)]


def test_a_reset_begins_anew() -> None:
    broker = started()
    broker.consumer("s", "c")
    broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 5})
    broker.delivered()
    answer = broker.api("CONSUMER.RESET.s.c", {"seq": 8})
    assert (answer["reset_seq"], answer["num_pending"], answer["delivered"]["stream_seq"]) == (8, 2, 7)
    rest = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 20})
    assert [(one.stream_seq, one.consumer_seq, one.pending) for one in broker.delivered(rest)] == [(8, 1, 1), (9, 2, 0)]
    assert broker.api("CONSUMER.RESET.s.c")["reset_seq"] == 10


def test_readers_that_catch_up_read_the_log_piece_by_piece() -> None:
    broker = started()
    for number in range(40):
        broker.publish(f"s.{'abc'[number % 3]}", b"x" * 100_000)
    for number in range(30):
        broker.publish("s.d", b"x" * 300_000, b"%d" % number)
    total, found = read(broker)
    assert total == 109
    while len(found) < total:
        broker.tick(20)
        found += [(one.stream_seq, one.pending) for one in broker.delivered("inbox")]
    assert (total, found) == counted(*range(1, 110))


def test_a_reader_has_what_was_acked_before_it_also_where_limits_are_decided_later() -> None:
    broker = started(max_messages_per_subject=2)
    for number in range(6):
        broker.publish("s.a", b"%d" % number)  # at one moment: the next decision waits for a pause
    assert read(broker, filter_subject="s.a") == counted(14, 15)
    broker.publish("s.b", b"new")
    broker.publish("s.b", b"newer")
    assert broker.consumer("s", "d", deliver_policy="all")["num_pending"] == 6


def test_an_info_counts_what_was_acked_before_it() -> None:
    broker = started(max_messages_per_subject=2)
    broker.consumer("s", "c", deliver_policy="new", filter_subject="s.a")
    for number in range(6):
        broker.publish("s.a", b"%d" % number)
    assert broker.api("CONSUMER.INFO.s.c")["num_pending"] == 2


def test_what_comes_before_the_first_place_of_a_reader_is_not_pending() -> None:
    broker = started()
    info = broker.consumer("s", "c", deliver_policy="by_start_sequence", opt_start_seq=11)
    assert info["num_pending"] == 0
    for _ in range(3):
        broker.publish("s.a", b"x")
    broker.settle()
    assert broker.api("CONSUMER.INFO.s.c")["num_pending"] == 2


def test_the_offsets_of_last_messages_are_kept_until_the_reader_has_them() -> None:
    broker = started()
    (readers,) = [one for one in broker.gateway.parts if isinstance(one, Readers)]
    assert read(broker, deliver_policy="last_per_subject", filter_subject="s.*") == counted(7, 8, 9)
    reader = readers.find(broker.node.image.by_name("s"), "c")
    assert reader is not None
    assert reader.cursor.wanted == b""
    broker.publish("s.a", b"new")
    assert [(one.stream_seq, one.pending) for one in broker.delivered("inbox")] == [(10, 0)]


def test_the_offsets_of_last_messages_are_bounded_for_all_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "WANTED_BYTES_MAX", 5 * 8)
    broker = started()
    wanted = {"deliver_policy": "last_per_subject", "filter_subject": "s.*", "inactive_threshold": 60 * S}
    assert broker.consumer("s", "a", **wanted)["num_pending"] == 3
    assert broker.consumer("s", "b", **wanted)["error"]["code"] == 503
    inbox = broker.send("CONSUMER.MSG.NEXT.s.a", {"batch": 9, "expires": 5 * S})
    assert [one.stream_seq for one in broker.delivered(inbox)] == [7, 8, 9]
    assert broker.consumer("s", "b", **wanted)["num_pending"] == 3


def listed(offsets: Sequence[int], number: int) -> ListSubjectsResponse:
    """A page of subjects, each with one message."""
    subjects = tuple(
        ListedSubject(subject=f"s.{number:04}.{one:020}", messages=1, first_offset=Offset(one), last_offset=Offset(one))
        for one in offsets
    )
    end = Offset(10_000_000)
    return ListSubjectsResponse(
        subjects=subjects, end_offset=end, log_start=Offset(0), committed_end=end, leader_epoch=LeaderEpoch(1)
    )


def test_the_last_messages_of_very_many_subjects_take_a_few_bytes_each() -> None:
    """Each answer of the node was kept, some 300 bytes for a subject, until all were there."""
    state = started().node.image.by_name("s")
    config = ReaderConfig(told={}, filters=("s.>",), policy="last_per_subject")
    pages, each = 60, limits.SUBJECTS_LISTED_MAX
    offsets = Random(1).sample(range(10_000_000), pages * each - 1)
    starting = start_of(state, config, Shown(None, 0, 10_000_000, 0))
    next(starting)
    tracemalloc.start()
    try:
        for number in range(pages - 1):
            starting.send([Answered(listed(offsets[number * each : (number + 1) * each], number))])
        with pytest.raises(StopIteration) as end:
            starting.send([Answered(listed(offsets[(pages - 1) * each :], pages))])
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [*memoryview(end.value.value.wanted).cast("q")] == sorted(offsets)
    assert most_bytes / len(offsets) < 100
