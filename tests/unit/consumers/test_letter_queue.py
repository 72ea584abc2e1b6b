"""Dead letters of one consumer: which one is tried next, and when."""

from __future__ import annotations

from penstock.consumers.letters import MAX_DELIVER, RETRY_US_MIN, Given, LetterQueue


def given(letters: LetterQueue, *offsets: int) -> None:
    for offset in offsets:
        letters.add(Given(offset, 1, MAX_DELIVER))


def tried(letters: LetterQueue, now_us: int) -> int | None:
    """The offset of the letter that is sent now."""
    found = letters.next(now_us)
    return None if found is None else found.offset


def refused_alone(count: int) -> LetterQueue:
    """So many letters, each of which was too large; the last refusal was at time 0."""
    letters = LetterQueue()
    given(letters, *range(count))
    for offset in range(count):
        assert tried(letters, 0) == offset
        letters.failed("too large", 0, is_alone=True)
    return letters


def test_a_stream_that_takes_none_is_tried_once_in_a_pause_by_letters_refused_alone_too() -> None:
    letters, now_us = refused_alone(5), 100 * RETRY_US_MIN
    assert tried(letters, now_us) == 0
    letters.failed("the stream is gone", now_us)
    assert tried(letters, now_us) is None
    assert letters.wake_us == now_us + RETRY_US_MIN
    assert tried(letters, now_us + RETRY_US_MIN) is not None


def test_letters_refused_alone_have_a_turn_though_others_come_all_the_time() -> None:
    letters, now_us = refused_alone(2), 100 * RETRY_US_MIN
    given(letters, 10, 11, 12)
    assert tried(letters, now_us) == 0
    letters.failed("too large", now_us, is_alone=True)
    for offset in (10, 11):
        assert tried(letters, now_us) == offset
        letters.done()
