"""The prefix of a JetStream domain's API before subjects of buckets."""

from __future__ import annotations

import pytest

from penstock.hot.message_group import MessageGroup, TooLarge

_PREFIX = b"$JS.penstock.API."


@pytest.mark.parametrize(
    ("subject", "kept"),
    [
        (b"$JS.penstock.API.$KV.bucket.key", b"$KV.bucket.key"),
        (b"$JS.penstock.API.$", b"$"),
        (b"$JS.penstock.API.", b"$JS.penstock.API."),
        (b"$JS.penstock.API.STREAM.INFO.s", b"$JS.penstock.API.STREAM.INFO.s"),
        (b"$JS.other.API.$KV.bucket.key", b"$JS.other.API.$KV.bucket.key"),
        (b"$KV.bucket.key", b"$KV.bucket.key"),
        (b"$", b"$"),
    ],
)
def test_the_prefix_is_dropped_before_a_dollar_only(subject: bytes, kept: bytes) -> None:
    group = MessageGroup.of([b"before", subject, b"$KV.b.k"], [b"1", b"2", b"3"], replies=[b"r", None, b"s"])
    group.too_large.append(TooLarge(subject, None, None, 5))
    group.drop_subject_prefix(_PREFIX)
    assert [group.subject(row) for row in range(3)] == [b"before", kept, b"$KV.b.k"]
    assert [group.value(row) for row in range(3)] == [b"1", b"2", b"3"]
    assert [group.reply(row) for row in range(3)] == [b"r", None, b"s"]
    assert group.too_large == [TooLarge(kept, None, None, 5)]
