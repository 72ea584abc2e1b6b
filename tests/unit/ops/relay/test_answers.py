"""What the answers of streams come to: acked, to be published again, or refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from penstock.ops.relay.answers import NOBODY_LISTENS, Answer, Answers, RelayRefusal, Storing, parse
from penstock.ops.relay.frames import SubjectMapping

ACK = b'{"stream":"copies","seq":43,"partition":0,"offset":42}'
DUPLICATE = b'{"stream":"copies","seq":1,"duplicate":true}'


def error(code: int, err_code: int) -> bytes:
    told = {"code": code, "err_code": err_code, "description": "said so"}
    return json.dumps({"error": told, "stream": "copies", "seq": 0}).encode()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (ACK, Answer("copies")),
        (DUPLICATE, Answer("copies", is_duplicate=True)),
        (error(400, 10166), Answer("copies", "said so (10166)")),
        (error(503, 10008), Answer("copies", "said so (10008)", is_for_now=True)),
        (error(429, 10167), Answer("copies", "said so (10167)", is_for_now=True)),
        (b"", None),
        (b"ok", None),
        (b"[1]", None),
        (b'{"seq":1}', None),
        (b'{"stream":7,"seq":1}', None),
        (b'{"stream":"copies"}', None),
        (b'{"error":"of a service"}', None),
        (b"\xff", None),
    ],
)
def test_answers_are_acks_errors_or_of_somebody_else(data: bytes, found: Answer | None) -> None:
    assert parse(data) == found


def test_all_have_to_ack_who_store_it() -> None:
    storing = Storing(["c.>", "c.a", "d.*"])
    assert [storing.acks_of(subject) for subject in ("c.a", "c.b", "d.x", "e", "c.a")] == [2, 1, 1, 0, 2]
    answers = Answers(1, 0, {7: 2, 8: 1, 9: 0})
    for reply in ("1.0-7", "1.0-8"):
        answers.take(reply, None, ACK)
    assert (answers.first_missing, answers.is_settled) == (7, False)
    answers.take("1.0-7", None, DUPLICATE)
    assert (answers.first_missing, answers.is_settled, answers.duplicates) == (None, True, 1)


def test_each_message_needs_the_acks_of_the_subject_on_which_it_is_published() -> None:
    storing = Storing(["eu.*", "eu.a"])
    subjects = ["a", "b", "a.x", "a"]
    rows = pa.RecordBatch.from_pydict({"offset": pa.array([3, 5, 6, 9], pa.int64()), "subject": subjects})
    assert storing.needed(rows, SubjectMapping("eu.{subject}")) == {3: 2, 5: 1, 6: 0, 9: 2}
    assert storing.needed(rows.slice(1, 1), SubjectMapping("eu.a")) == {5: 2}


def test_one_ack_at_least_where_that_is_asked_for() -> None:
    assert Storing(["c.a"], at_least=1).acks_of("e") == 1
    assert (Storing().is_known, Storing(at_least=1).is_known, Storing(["a"]).is_known) == (False, True, True)


def test_the_first_refused_message_is_named_also_of_an_attempt_before() -> None:
    answers = Answers(3, 1, {7: 1, 8: 1})
    answers.take("3.1-8", None, error(400, 10166))
    answers.take("2.1-4", None, error(400, 10054))
    answers.take("3.1-7", None, error(500, 10111))
    assert answers.refused == RelayRefusal(1, 4, "copies", "said so (10054)")
    assert answers.is_settled


def test_what_is_for_now_is_published_again_from_the_first_that_is_missing() -> None:
    answers = Answers(2, 0, {7: 1, 8: 1, 9: 1})
    answers.take("1.0-7", None, error(503, 10008))
    assert not answers.is_settled, "it was said of another attempt"
    answers.take("1.0-8", None, ACK)
    answers.take("2.0-7", None, ACK)
    answers.take("2.0-9", None, ACK)
    answers.take("2.0-8", None, error(503, 10008))
    assert (answers.first_missing, answers.is_settled, answers.later) == (8, True, "stream copies: said so (10008)")
    assert answers.refused is None


def test_nobody_listens_where_a_stream_is_to_ack() -> None:
    answers = Answers(1, 0, {7: 1, 8: 0})
    answers.take("1.0-8", "503", b"")
    assert not answers.later
    answers.take("1.0-7", "503", b"")
    assert (answers.later, answers.first_missing) == (NOBODY_LISTENS, 7)


@pytest.mark.parametrize("reply", ["", "1", "1.0", "1.0-", "1.x-7", "1.0-7.x", f"1.0-{'7' * 5_000}", "1.0-٧"])
def test_a_reply_that_is_no_place_counts_for_nothing(reply: str) -> None:
    answers = Answers(1, 0, {7: 1})
    answers.take(reply, None, error(400, 10166))
    answers.take(reply, None, ACK)
    assert (answers.refused, answers.first_missing) == (None, 7)


@pytest.mark.parametrize(
    "data", [b"[" * 200_000, b'{"error":' * 200_000, b"\xff", b'{"stream":"s","seq":' + b"9" * 5_000 + b"}"]
)
def test_an_answer_of_any_bytes_ends_nothing(data: bytes) -> None:
    """Any program may publish on the inbox."""
    assert parse(data) is None
