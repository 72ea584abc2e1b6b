"""The key of a message."""

from __future__ import annotations

import pytest

from penstock.idl.mistakes import IdlError
from penstock.idl.python.load import load_text


def _key(text: str, annotations: str = "") -> tuple[str, ...]:
    module = load_text(f"{text}\nscope S {{ Op: T{annotations} }}")
    key: tuple[str, ...] = module.S.operations["Op"].key
    return key


@pytest.mark.parametrize(
    ("text", "annotations", "key"),
    [
        ("struct T { 1: string a }", "", ()),
        ("struct T { 1: string a (key) }", "", ("a",)),
        ('struct T { 1: string a (key = "false") 2: i32 b (key = "true") }', "", ("b",)),
        ("struct C { 1: i64 from (key) } struct T { 1: C c 2: string d }", "", ("c", "from_")),
        # The nearest counts.
        ("struct C { 1: i64 id (key) } struct T { 1: C c 2: string d (key) }", "", ("d",)),
        # A marked struct: the key in it.
        ("struct C { 1: i64 id (key) } struct T { 1: C c 2: C d (key) }", "", ("d", "id")),
        # The operation names it.
        ("struct C { 1: i64 id (key) } struct T { 1: C c 2: C d }", ' (key = "c.id")', ("c", "id")),
        ("struct C { 1: i64 id (key) } struct T { 1: C c 2: C d }", ' (key = "d")', ("d", "id")),
        # Structs that hold themselves and each other.
        ("struct C { 1: optional T t } struct T { 1: optional T t 2: C c }", "", ()),
        ("struct C { 1: optional T t } struct T { 1: optional T t 2: C c 3: uuid u (key) }", "", ("u",)),
        # Containers and unions have no key.
        ("struct C { 1: i64 id (key) } struct T { 1: list<C> c 2: map<i32, C> d }", "", ()),
        ("union C { 1: i64 id (key) } struct T { 1: C c }", "", ()),
        ("enum E { A } struct T { 1: E e (key) }", "", ("e",)),
        ("typedef binary B struct T { 1: B b (key) }", "", ("b",)),
    ],
)
def test_key(text: str, annotations: str, key: tuple[str, ...]) -> None:
    assert _key(text, annotations) == key


@pytest.mark.parametrize(
    ("text", "annotations", "place", "mistake"),
    [
        ("struct T { 1: i32 a (key) 2: i32 b (key) }", "", "2:11", "the message has two keys, a and b; mark one"),
        ("struct C { 1: i32 a (key) } struct T { 1: C b 2: C c }", "", "2:11", "two keys, b.a and c.a"),
        ("struct T { 1: list<i32> a (key) }", "", "1:12", '"a" cannot be a key: its type is no text'),
        ("struct T { 1: double a (key) }", "", "1:12", '"a" cannot be a key'),
        (
            "struct C { 1: i32 a } struct T { 1: C c (key) }",
            "",
            "1:34",
            '"c" is marked as the key, and no field',
        ),
        ("struct T { 1: i32 a }", ' (key = "b")', "2:11", "the key 'b' is not there: \"T\" has no field 'b'"),
        ("struct T { 1: i32 a }", ' (key = "a.b")', "2:11", "leads through 'a', which is no struct"),
        ("struct T { 1: i32 a }", " (key)", "2:11", "the key '' is not there"),
        ("typedef i32 T", ' (key = "a")', "2:11", '"Op" has a key, and its type is no struct'),
        ("struct T { 1: i32 a }", ' (stream = "no such.name")', "2:11", 'the stream of "Op": the name'),
        (
            "struct T { 1: i32 a (key) }",
            ' (stream = "s", partition_by = "group")',
            "2:11",
            "puts a message into a log at random, and it has the key a",
        ),
        (
            "struct T { 1: i32 a }",
            ' (stream = "s", key = "a", partition_by = "group")',
            "2:11",
            "puts a message into a log at random, and it has the key a",
        ),
        ("struct T { 1: i32 a }", ' (partition_by = "key")', "2:11", "splits no stream"),
        ("struct T { 1: i32 a }", ' (stream = "s", partition_by = "colour")', "2:11", "is not one of publisher"),
        ("struct T { 1: i32 a }", ' (stream = "s", partition_by = "mapped")', "2:11", "a subject of its own"),
        (
            "struct T { 1: i32 a }",
            ' (stream = "s", partition_by = "key") Two: T (stream = "s", partition_by = "group")',
            "2:54",
            "contradicts partition_by = 'key' of the same stream 's'",
        ),
    ],
)
def test_mistakes(text: str, annotations: str, place: str, mistake: str) -> None:
    with pytest.raises(IdlError) as caught:
        _key(text, annotations)
    (found,) = caught.value.mistakes
    assert mistake in found.text
    assert str(found.position) == f"contract.frugal:{place}"


@pytest.mark.parametrize("split", ["key", "range", "token:2"])
def test_a_key_and_how_a_stream_is_split_that_fit_together(split: str) -> None:
    assert _key("struct T { 1: i32 a (key) }", f' (stream = "s", partition_by = "{split}")') == ("a",)
    assert _key("struct T { 1: i32 a }", ' (stream = "s", partition_by = "group")') == ()
