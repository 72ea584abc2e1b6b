"""How a list of keys is read."""

from __future__ import annotations

import base64
import os

import pytest

from penstock.vfs.keys import KeyMistakeError, new_key_line, parse_keys

_KEY = base64.b64encode(b"k" * 32).decode()
_OTHER = base64.b64encode(b"o" * 32).decode()


@pytest.mark.parametrize(
    "text", [f"# ours\n2026-11 {_KEY}\n\n2026-10  {_OTHER} \n", f"2026-11 {_KEY},2026-10 {_OTHER}"]
)
def test_the_first_key_is_the_current_one(text: str) -> None:
    keys = parse_keys(text)
    assert (keys.current_id, keys.ids) == ("2026-11", ("2026-11", "2026-10"))
    assert keys.key("2026-10", "") == b"o" * 32


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "there is no key"),
        (f"a {_KEY}\na {_OTHER}", "line 2: the key id 'a' occurs twice"),
        (f"a {_KEY}\nb {_KEY}", "line 2: the key 'b' is the same as another one"),
        (_KEY, "line 1: expected '<key id> <32 bytes in base64>'"),
        ("a ???", "line 1: the key is not base64"),
        ("a " + base64.b64encode(b"short").decode(), "line 1: the key has 5 bytes, not 32"),
        (f"a/b {_KEY}", "an id has letters"),
        (
            "\n".join(f"k{one} {base64.b64encode(bytes([one]) * 32).decode()}" for one in range(65)),
            "65 keys; at most 64",
        ),
    ],
)
def test_a_mistake_says_where_and_does_not_repeat_a_key(text: str, mistake: str) -> None:
    with pytest.raises(KeyMistakeError) as raised:
        parse_keys(text)
    assert mistake in str(raised.value)
    assert _KEY not in str(raised.value)


def test_a_new_line_is_a_key_and_another_one_each_time() -> None:
    first, second = (parse_keys(new_key_line("a", os.urandom)).key("a", "") for _ in range(2))
    assert first != second
    with pytest.raises(KeyMistakeError):
        new_key_line("no id", os.urandom)
