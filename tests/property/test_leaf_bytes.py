"""Leaf protocol split anywhere, changed anywhere: the same interest, or a closed session; never anything else."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.subjects import is_within
from penstock.ingest.interest import InterestTable
from penstock.ingest.leaf import LeafSession
from penstock.ingest.nats import NatsSessionState

_INFO = b'INFO {"headers":true}\r\nPONG\r\n'
_tokens = st.sampled_from(["a", "b", "*", "c>"])
_keys = st.builds(
    lambda tokens, rest: ".".join((*tokens, *rest)),
    st.lists(_tokens, min_size=1, max_size=4),
    st.sampled_from([(), (">",)]),
)
_queues = st.sampled_from(["", "", "q"])
_changes = st.lists(st.tuples(_keys, _queues, st.booleans()), max_size=40)


def _fed(data: bytes, cuts: list[int]) -> tuple[InterestTable, LeafSession]:
    table = InterestTable()
    session = LeafSession(table, name="n")
    buffer, position = _INFO + data, 0
    for end in [*sorted(len(_INFO) + cut % (len(data) + 1) for cut in cuts), len(buffer)]:
        received = session.receive(buffer, position, end, 0)
        assert position <= received.position <= end
        position = received.position
        if session.state is NatsSessionState.CLOSED:
            break
    return table, session


def _lines(changes: list[tuple[str, str, bool]]) -> tuple[bytes, set[tuple[str, str]]]:
    """What nats-server says of subscriptions that come and go, and those that are there at the end."""
    counts: Counter[tuple[str, str]] = Counter()
    lines = b""
    for key, queue, comes in changes:
        before = counts[key, queue]
        counts[key, queue] = max(0, before + (1 if comes else -1))
        now = counts[key, queue]
        words = f"{key} {queue}" if queue else key
        if now and (queue or not before):
            lines += f"LS+ {words} {now}\r\n".encode() if queue else f"LS+ {words}\r\n".encode()
        elif before and not now:
            lines += f"LS- {words}\r\n".encode()
    return lines, {pair for pair, count in counts.items() if count}


@given(_changes, st.lists(st.integers(0, 2_000), max_size=20), st.lists(_tokens, min_size=1, max_size=5))
def test_look_ups_agree_with_matching_every_subscription(
    changes: list[tuple[str, str, bool]], cuts: list[int], tokens: list[str]
) -> None:
    lines, there = _lines(changes)
    table, session = _fed(lines, cuts)
    assert session.state is NatsSessionState.READY
    subject = ".".join(token.replace("*", "x") for token in tokens)
    for queue in ("", "q"):
        wanted = any(is_within(subject, key) for key, group in there if group == queue)
        assert table.has_interest(subject.encode(), queue.encode()) is wanted
    assert len(table) == len(there)
    assert table.scanned.size_bytes == sum(map(len, table.scanned.keys))


@given(_changes, st.integers(0, 8))
def test_with_too_little_room_nothing_wrong_is_said(changes: list[tuple[str, str, bool]], keys_max: int) -> None:
    lines, there = _lines(changes)
    table = InterestTable(keys_max=keys_max)
    session = LeafSession(table, name="n")
    session.receive(_INFO + lines, 0, len(_INFO + lines), 0)
    assert len(table) <= keys_max
    for subject in ("a", "a.b", "b.b.a", "c>.a"):
        for queue in ("", "q"):
            wanted = any(is_within(subject, key) for key, group in there if group == queue)
            assert table.has_interest(subject.encode(), queue.encode()) in (wanted, None)
    everything = b"".join(f"LS- {key} {queue}".rstrip().encode() + b"\r\n" for key, queue in there)
    session.receive(everything, 0, len(everything), 0)
    assert (len(table), table.scanned.untracked, table.has_interest(b"a")) == (0, 0, False)


@given(_changes, st.integers(0, 2_000), st.binary(max_size=6), st.lists(st.integers(0, 2_000), max_size=12))
def test_damaged_bytes_give_the_same_however_they_are_cut(
    changes: list[tuple[str, str, bool]], at: int, damage: bytes, cuts: list[int]
) -> None:
    lines, _ = _lines(changes)
    at %= len(lines) + 1
    damaged = lines[:at] + damage + lines[at + len(damage) :]
    whole, split = _fed(damaged, []), _fed(damaged, cuts)
    assert whole[1].state is split[1].state
    if whole[1].state is NatsSessionState.READY:
        assert whole[0].scanned.keys == split[0].scanned.keys
        assert whole[0].scanned.untracked == split[0].scanned.untracked
