"""Messages by subject against a list: wildcards, ranges of offsets and times, deletions, purges, limits."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.subjects import matches
from penstock.batch import codec
from penstock.messages import (
    DeleteMessagesRequest,
    FindMessagesRequest,
    FindMessagesResponse,
    PurgeSubjectRequest,
    TruncateRequest,
    TruncateResponse,
)
from tests.extent import examples
from tests.unit.node.harness import Broker

NAMES = ("a", "b", "a.b", "a.c", "b.c.d")
PATTERNS = (*NAMES, ">", "*", "a.*", "*.c.>", "none", "none.>")
OF_STREAM = "orders."
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "publish", "append", "delete", "purge", "truncate", "restart", "wait"]),
        st.sampled_from(NAMES),
        st.integers(0, 60),
    ),
    max_size=40,
)
ASKED = st.lists(
    st.fixed_dictionaries(
        {"which": st.sampled_from(["next", "last", "last_of_each"])},
        optional={
            "subjects": st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3).map(tuple),
            "begin": st.integers(0, 70),
            "end": st.integers(0, 70),
            "begin_ms": st.integers(-1, 50),
            "end_ms": st.integers(-1, 50),
            "limit": st.sampled_from([1, 2, 5, 1_024]),
            "bytes_max": st.sampled_from([1, 700, limits.FOUND_BYTES_MAX]),
        },
    ),
    min_size=1,
    max_size=12,
)


class Stored(NamedTuple):
    """A message that was not deleted."""

    offset: int
    subject: str
    time_us: int
    value: bytes


@given(
    ACTS,
    ASKED,
    st.sampled_from([0, limits.FOUND_ON_LOOP_MAX]),
    st.sampled_from([2, limits.SUBJECT_TABLE_MAX]),
    st.sampled_from([2_500, limits.LAST_ROWS_BYTES_MAX]),
    st.sampled_from([0, 1, 2]),
)
@example([("append", "a", 4)], [{"which": "next", "begin": 1, "end": 3, "limit": 5}], 0, 2, 2_500, 0)
@settings(max_examples=examples(120), deadline=None)
def test_what_is_found_is_in_the_list(
    acts: list[tuple[str, str, int]],
    asked: list[dict[str, Any]],
    on_loop_max: int,
    table_max: int,
    kept_bytes_max: int,
    history: int,
) -> None:
    with (
        patch.object(limits, "FOUND_ON_LOOP_MAX", on_loop_max),
        patch.object(limits, "SUBJECT_TABLE_MAX", table_max),
        patch.object(limits, "LAST_ROWS_BYTES_MAX", kept_bytes_max),
    ):
        broker = Broker().start()
        limit = {"max_messages_per_subject": history} if history else {}
        broker.create("orders", segment_bytes=4096, **limit)
        start_us, live, end = broker.clock.wall_us, dict[int, Stored](), 0
        for number, (act, name, place) in enumerate(acts):
            broker, end = run(broker, live, end, act, name, place, history)
            check_at(broker, live, (place, place // 2, end - 1, end, max(end - place, 0)))
            if number % 2:
                check(broker, live, end, {"which": "last_of_each", "subjects": NAMES[place % 4 :]}, start_us)
            if number % 8 == 7:
                check(broker, live, end, asked[number // 8 % len(asked)], start_us)
        for one in asked:
            check(broker, live, end, one, start_us)


def run(
    broker: Broker, live: dict[int, Stored], end: int, act: str, name: str, place: int, history: int
) -> tuple[Broker, int]:
    """Do one thing to the stream and to the list."""
    stream_id = broker.stream_id("orders")
    match act:
        case "publish":
            value = b"%d" % end + b"." * 300
            broker.publish(OF_STREAM + name, value)
            broker.tick(1)
            live[end] = Stored(end, OF_STREAM + name, broker.clock.wall_us - 1_000, value)
            if history:
                for one in [one for one in live.values() if one.subject == OF_STREAM + name][:-history]:
                    del live[one.offset]
            return broker, end + 1
        case "append":  # several in one batch: a range may begin and end within it
            values = [b"%d" % (end + number) for number in range(1 + place % 5)]
            broker.append("orders", *values, subject=OF_STREAM + name)
            for number, value in enumerate(values, end):
                live[number] = Stored(number, OF_STREAM + name, broker.clock.wall_us, value)
            if history:
                for one in [one for one in live.values() if one.subject == OF_STREAM + name][:-history]:
                    del live[one.offset]
            broker.tick(1_000)
            return broker, end + len(values)
        case "delete" if place in live:
            broker.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(place,)))  # type: ignore[arg-type]
            del live[place]
        case "purge":
            broker.request(PurgeSubjectRequest(stream_id=stream_id, subject=OF_STREAM + name))
            for one in [one for one in live.values() if one.subject == OF_STREAM + name]:
                del live[one.offset]
        case "truncate" if place <= end:
            broker.ask(TruncateRequest(stream_id=stream_id, before=place), TruncateResponse)  # type: ignore[arg-type]
            for offset in [offset for offset in live if offset < place]:
                del live[offset]
        case "restart":
            broker.tick(1_000)
            broker = broker.crash().start()
    broker.tick(1_000)
    return broker, end


def check(
    broker: Broker,
    live: dict[int, Stored],
    end: int,
    asked: dict[str, Any],
    start_us: int,
) -> None:
    """Ask the broker and the list, until all is answered."""
    options = dict(asked)
    moments = [start_us, *(one.time_us for one in live.values())]
    for edge in ("begin", "end"):
        if (place := options.pop(f"{edge}_ms", None)) is not None:
            options[f"{edge}_us"] = moments[place % len(moments)] + place % 2
    options["subjects"] = tuple(one if one in (">",) else OF_STREAM + one for one in options.get("subjects", (">",)))
    patterns = options["subjects"]

    begin, stop = options.get("begin", 0), min(options.get("end", end), end)
    if "end_us" in options:
        stop = min([stop, *(one.offset for one in live.values() if one.time_us >= options["end_us"])])
    if "begin_us" in options:
        begin = max(begin, min([stop, *(o.offset for o in live.values() if o.time_us >= options["begin_us"])]))
    before_end = [o for o in live.values() if o.offset < stop and any(matches(p, o.subject) for p in patterns)]
    match options["which"]:
        case "next":
            wanted = [one for one in before_end if one.offset >= begin]
        case "last":
            wanted = [one for one in before_end[-1:] if one.offset >= begin]
        case _:
            lasts = {one.subject: one for one in before_end}
            wanted = sorted(one for one in lasts.values() if one.offset >= begin)
    found: list[Stored] = []
    for _ in range(500):
        request = FindMessagesRequest(stream_id=broker.stream_id("orders"), **options)
        caller = broker.request(request)
        answer = broker.answer(caller, FindMessagesResponse)
        page = rows_of(broker.payloads.get(caller))
        assert len(page) <= request.limit
        # a read of small batches finds what lies beside the message that is enough
        assert request.which == "next" or sum(len(one.value) for one in page[:-1]) < request.bytes_max
        found += page
        assert answer.begin <= answer.next_offset <= answer.end_offset <= end
        if request.which == "last_of_each":
            assert answer.subjects == len(lasts)
            assert answer.messages == len(wanted) - len(found) + len(page)
        if len(found) >= len(wanted) or request.which == "last" or answer.next_offset >= answer.end_offset:
            break
        options |= {"begin": answer.next_offset, "end": answer.end_offset}
        options.pop("begin_us", None)
        options.pop("end_us", None)
    assert found == wanted, (asked, options)


def check_at(broker: Broker, live: dict[int, Stored], offsets: tuple[int, ...]) -> None:
    """Ask for the messages at some offsets."""
    asked = tuple(max(one, 0) for one in offsets)
    request = FindMessagesRequest(stream_id=broker.stream_id("orders"), which="at", offsets=asked)  # type: ignore[arg-type]
    caller = broker.request(request)
    answer = broker.answer(caller, FindMessagesResponse)
    assert answer.next_offset == answer.end_offset
    found = rows_of(broker.payloads.get(caller))
    assert found == [live[one] for one in sorted({*asked}) if one in live]


def rows_of(data: bytes | None) -> list[Stored]:
    """The rows of an answer's batch."""
    if not data:
        return []
    codec.verify(data)
    rows = codec.check_rows(data).to_pylist()
    numbers = codec.timestamps(data)
    return [Stored(row["offset"], row["subject"], numbers[at], row["value"]) for at, row in enumerate(rows)]
