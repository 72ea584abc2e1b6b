"""Names and subjects: what is refused and why, and which subject a pattern covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.subjects import (
    are_plain,
    begins_with_wildcard,
    is_reserved,
    is_wildcard,
    matches,
    stream_name_mistake,
    subject_mistake,
)


@pytest.mark.parametrize("name", ["a", "orders", "Orders-2_x", "0", "-", "x" * limits.STREAM_NAME_CHARS_MAX])
def test_good_stream_names(name: str) -> None:
    assert stream_name_mistake(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "needs a name"),
        ("x" * (limits.STREAM_NAME_CHARS_MAX + 1), "129 characters"),
        *((name, "may hold only") for name in ("a.b", "a b", "a/b", "..", "a\n", "ä", "a*", ">", "a\x00", "\\", "٣")),
    ],
)
def test_bad_stream_names(name: str, reason: str) -> None:
    assert reason in (stream_name_mistake(name) or "")


@pytest.mark.parametrize("subject", ["a", "a.b", "größe.→", "$X", "_INBOX.x", "a*", "*a", ">a", "a.b>", "**", ">>"])
def test_good_plain_subjects(subject: str) -> None:
    assert subject_mistake(subject) is None
    assert not is_wildcard(subject)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.a", "*.*.>"])
def test_wildcards_only_where_they_are_allowed(subject: str) -> None:
    assert is_wildcard(subject)
    assert subject_mistake(subject, wildcards=True) is None
    assert "wildcard" in (subject_mistake(subject) or "")


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("", "empty"),
        (".", "empty token"),
        (".a", "empty token"),
        ("a.", "empty token"),
        ("a..b", "empty token"),
        (">.a", "before its end"),
        ("a.>.b", "before its end"),
        ("x" * 1025, "1025 bytes"),
        ("é" * 513, "1026 bytes"),
        ("a\ud800", "not valid text"),
        *((f"a{character}b", "white space") for character in " \t\r\n\x00\x1f\x7f\v\f"),
    ],
)
def test_bad_subjects(subject: str, reason: str) -> None:
    assert reason in (subject_mistake(subject, wildcards=True) or "")


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b.>", "a.b.c", True),
        ("*.b.>", "a.b", False),
        ("A", "a", False),
        ("a*", "a*", True),
        ("a*", "ab", False),
        # what is reserved is captured only by name
        (">", "$SYS.x", False),
        ("*.x", "$JS.x", False),
        ("*.>", "_INBOX.a.b", False),
        (">", "$PENSTOCK.x", False),
        ("$SYS.>", "$SYS.x", True),
        ("_INBOX.*", "_INBOX.a", True),
        (">", "$SYSTEM.x", True),
        (">", "$KV.bucket.key", True),
    ],
)
def test_which_subject_a_pattern_covers(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


TOKENS = st.sampled_from(["a", "b", "ab", "*", ">", "$SYS", "_INBOX"])
PATTERNS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)


@given(PATTERNS)
def test_a_plain_subject_covers_itself_alone(subject: str) -> None:
    if subject_mistake(subject) is None:
        assert matches(subject, subject)
        assert not matches(subject, subject + ".more")


@given(pattern=PATTERNS, subject=PATTERNS)
def test_only_patterns_that_begin_with_a_wildcard_leave_reserved_subjects_out(pattern: str, subject: str) -> None:
    if begins_with_wildcard(pattern) and is_reserved(subject):
        assert not matches(pattern, subject)


@given(st.text(max_size=30))
def test_any_text_gets_an_answer(text: str) -> None:
    mistake = subject_mistake(text, wildcards=True)
    assert mistake is None or (mistake and "\n" not in mistake)
    if subject_mistake(text) is None:
        assert mistake is None
    stream_name_mistake(text)


BEYOND_ASCII = ["a.b\u00a0c", "o.\u2003", "o.\u2028", "o.\u3000", "o.\x85", "o.\ufeff"]
"""nats-server takes them: its white space is ASCII."""
SOUND = [b"a", b"orders.eu", "größe.→".encode(), b"a*", b">a.b", *map(str.encode, BEYOND_ASCII)]
UNSOUND = [
    b"",
    b"a..b",
    b".a",
    b"a.",
    b"o.*",
    b"*.o",
    b">",
    b"o.>",
    b"o.>.x",
    b"o.\x07",
    b"o.\x7f",
    b"o\t",
    b"o\r",
    b"o.\xff",
    b"o.\xc3",
    b"o" * (limits.SUBJECT_BYTES_MAX + 1),
]


@pytest.mark.parametrize("unsound", UNSOUND)
@pytest.mark.parametrize("others", [[], [b"a"], SOUND])
def test_one_subject_that_is_not_plain_is_found_among_others(unsound: bytes, others: list[bytes]) -> None:
    assert are_plain(others)
    assert not are_plain([unsound, *others])
    assert not are_plain([*others, unsound])


@pytest.mark.parametrize("subject", BEYOND_ASCII)
def test_white_space_beyond_ascii_is_a_character_like_others(subject: str) -> None:
    assert subject_mistake(subject) is None
    assert subject_mistake(f"{subject}.*", wildcards=True) is None


def mistaken(subject: bytes) -> bool:
    try:
        return subject_mistake(subject.decode()) is not None
    except UnicodeDecodeError:
        return True


@given(st.lists(st.sampled_from([*SOUND, *UNSOUND]) | st.binary(max_size=4) | st.text(max_size=4).map(str.encode)))
def test_many_subjects_are_checked_as_each_is(subjects: list[bytes]) -> None:
    assert are_plain(subjects) == (not any(map(mistaken, subjects)))
