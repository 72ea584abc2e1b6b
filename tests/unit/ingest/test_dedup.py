"""The message ids of one leadership, while the log is read and after."""

from __future__ import annotations

from penstock.hot.message_ids import MessageIds
from penstock.ingest.dedup import Dedup


def known_after(dedup: Dedup, batches: int, ids_max: int) -> list[int]:
    """Append batches of one id, one by one, have the ids of before known, and say which are found, and where."""
    for i in range(batches):
        dedup.appended([(0, b"%d" % i)], 10 + i, 1_000 + i)
    dedup.known(MessageIds(ids_max))
    now_us = dedup.at(2_000)
    ids = dedup.ids(now_us)
    assert ids is not None
    keys = [b"%d" % i for i in range(batches)]
    return [ids.find(key, 0, len(key)) for key in keys]


def test_what_is_appended_while_the_log_is_read_is_known_afterwards() -> None:
    assert known_after(Dedup(60_000_000, 5, 0), 3, 5) == [10, 11, 12]


def test_no_more_is_kept_while_the_log_is_read_than_would_be_known_afterwards() -> None:
    dedup = Dedup(60_000_000, 3, 0)
    assert known_after(dedup, 5, 3) == [-1, -1, 12, 13, 14]
    waiting = Dedup(60_000_000, 3, 0)
    for i in range(1_000):
        waiting.appended([(0, b"a"), (1, b"b")], 10 + 2 * i, 1_000 + i)
    assert len(waiting._late) == 2


def test_a_batch_without_ids_takes_no_place() -> None:
    dedup = Dedup(60_000_000, 3, 0)
    for i in range(1_000):
        dedup.appended([], 10 + i, 1_000 + i)
    assert not dedup._late
