"""Rows of `__schemas`: golden bytes, and what is ignored."""

from __future__ import annotations

import pytest

from penstock.schemas import rows
from penstock.schemas.rows import StoredText, StoredVersion, VersionKey

TEXT = StoredText("frugal", "struct A { }\n", (("b.frugal", '"é"'),))
HASH = "0c0800e292c8c96e24b17d37e517569d0089eceb6f13a2e34bb296b8badd571b"
VERSION = StoredVersion(
    kind="frugal",
    text_hash="a" * 64,
    hash="b" * 64,
    registered_us=5,
    type_name="A",
    message="Made",
    framing="frugal-v0",
    protocol="compact",
    by="ann",
    sharer="ann/7",
    is_forced=True,
)


def test_golden_bytes() -> None:
    """They lie on disks: a change of them needs a version of their own."""
    assert rows.encode_text_key("a" * 64) == b"v1/text/" + b"a" * 64
    assert rows.encode_version_key(VersionKey(7, "a.*/é.>", 12)) == "v1/version/7/a.*/é.>/12".encode()
    assert rows.encode_value(TEXT) == (
        '{"kind":"frugal","text":"struct A { }\\n","closure":[["b.frugal","\\"é\\""]]}'.encode()
    )
    assert rows.encode_value(VERSION).decode() == (
        f'{{"kind":"frugal","text_hash":"{"a" * 64}","hash":"{"b" * 64}","registered_us":5,"type_name":"A",'
        '"message":"Made","framing":"frugal-v0","protocol":"compact","by":"ann","sharer":"ann/7","is_forced":true}'
    )
    plain = StoredVersion(kind="avro", text_hash="a" * 64, hash="b" * 64, registered_us=5)
    assert rows.encode_value(plain).decode() == (
        f'{{"kind":"avro","text_hash":"{"a" * 64}","hash":"{"b" * 64}","registered_us":5}}'
    )
    assert TEXT.hash() == HASH
    assert TEXT.hash() != StoredText("frugal", "struct A { }\nb.frugal", (('"é"', ""),)).hash()
    assert TEXT.size == 13 + 4


def test_rows_are_read_as_they_were_written() -> None:
    for key in (VersionKey(7, "a.*/é.>", 12), VersionKey(2**62, "a/1", 1)):
        assert rows.decode_version_key(rows.encode_version_key(key)) == key
    assert rows.decode_text_key(rows.encode_text_key("a" * 64)) == "a" * 64
    assert rows.decode_text(rows.encode_value(TEXT)) == TEXT
    assert rows.decode_version(rows.encode_value(VERSION)) == VERSION
    later = rows.encode_value(VERSION)[:-1] + b',"later":[1]}'
    assert rows.decode_version(later) == VERSION


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"v2/version/7/a/1",
        b"v1/version/7/a/01",
        b"v1/version/0/a/1",
        b"v1/version/7//1",
        b"v1/version/7/\xff/1",
    ],
)
def test_unknown_keys_are_ignored(key: bytes | None) -> None:
    assert rows.decode_version_key(key) is None
    assert rows.decode_text_key(key) is None


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b'{"kind":1}', b"\xff", b"[" * 100_000, b'{"kind":"a","text":"\\ud800']
)
def test_unknown_values_are_ignored(value: bytes) -> None:
    assert rows.decode_version(value) is None
    assert rows.decode_text(value) is None
