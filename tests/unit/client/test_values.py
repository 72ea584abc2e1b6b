"""Keys, headers, acks: what a text-based header can carry and what comes back."""

from __future__ import annotations

import base64
import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.client.link.addresses import parse_server
from penstock.client.publish_format import KEY_BASE64_HEADER, KEY_HEADER, key_header, parse_ack
from penstock.client.values import Headers, Message, MessageList, encode_headers


@given(st.one_of(st.binary(min_size=1, max_size=50), st.text(min_size=1, max_size=30).map(str.encode)))
def test_a_key_survives_a_header_whatever_it_holds(key: bytes) -> None:
    name, text = key_header(key)
    # What a header goes through on its way: one line of UTF-8 whose ends are stripped.
    line = f"{name}: {text}".encode().splitlines()
    assert len(line) == 1
    value = line[0].partition(b":")[2].strip()
    assert name in (KEY_HEADER, KEY_BASE64_HEADER)
    assert (value if name == KEY_HEADER else base64.b64decode(value, validate=True)) == key


def test_keys_of_people_stay_readable() -> None:
    assert key_header("N12345") == (KEY_HEADER, "N12345")
    assert key_header("customer 7 zürich") == (KEY_HEADER, "customer 7 zürich")
    assert key_header(" 7") == (KEY_BASE64_HEADER, "IDc=")
    assert key_header("a\nb")[0] == KEY_BASE64_HEADER


HEADER_NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1)
HEADER_VALUES = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"])).map(
    lambda text: text.strip(" \t")
)


@given(st.dictionaries(HEADER_NAMES, st.lists(HEADER_VALUES, min_size=1), min_size=1))
def test_headers_survive_their_block(headers: dict[str, list[str]]) -> None:
    parsed = Headers(encode_headers(headers))
    assert {name: parsed.get_all(name) for name in parsed} == headers


@given(st.binary())
def test_no_header_block_makes_the_parser_fail(raw: bytes) -> None:
    headers = Headers(raw)
    assert len(list(headers)) == len(headers)
    assert all(headers[name] == headers.get_all(name)[0] for name in headers)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"A": b"1"}, "the value of header 'A' is bytes; give text, or several in a list"),
        ({"A": None}, "the value of header 'A' is NoneType"),
        ({"A": ["1", 2]}, "the value of header 'A' is int; give text"),
        ({b"A": "1"}, "the header name b'A' is bytes; give text"),
    ],
)
def test_headers_are_text(headers: Any, said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        encode_headers(headers)


def test_a_tombstone_is_null_whatever_its_headers_say() -> None:
    def message(value: bytes | None, headers: bytes | None = None) -> Message:
        return Message(0, 0, "s", b"k", value, headers)

    assert message(None).is_tombstone
    assert not message(b"").is_tombstone
    # The cleaner goes by the value, and so must a table.
    assert not message(b"", b"NATS/1.0\r\nPenstock-Tombstone: 1\r\n\r\n").is_tombstone
    assert message(b"1") == copy.copy(message(b"1"))
    assert message(b"1") != message(b"2")
    assert len(repr(message(bytes(10**6)))) < 500


@pytest.mark.parametrize("data", [b"", b"[]", b"hello", b"\xff", b'{"seq": "x"}', b"[" * 100_000])
def test_a_reply_that_is_no_ack_is_an_error(data: bytes) -> None:
    with pytest.raises(RemoteError, match="no ack"):
        parse_ack(data)


def test_a_reply_without_a_stream_or_a_sequence_is_no_ack() -> None:
    for data in (b"{}", b'{"stream": "a"}', b'{"seq": 5}', b'{"stream": "a", "seq": 0}'):
        with pytest.raises(RemoteError, match="no ack"):
            parse_ack(data)


@pytest.mark.parametrize(
    ("server", "parsed"),
    [
        ("h", ("h", 7422)),
        ("h:1", ("h", 1)),
        ("h:", ("h", 7422)),
        ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", 7422)),
        ("::1", ("::1", 7422)),
        (" 10.0.0.1:80 ", ("10.0.0.1", 80)),
    ],
)
def test_servers_are_hosts_with_a_port_or_without(server: str, parsed: tuple[str, int]) -> None:
    assert parse_server(server) == parsed


def test_limits_of_a_key() -> None:
    key_header(bytes(limits.KEY_BYTES_MAX))
    with pytest.raises(ValueError, match="limit"):
        key_header(bytes(limits.KEY_BYTES_MAX + 1))


def test_the_value_as_text_and_json() -> None:
    def message(value: bytes | None) -> Message:
        return Message(7, 0, "s", None, value, None)

    assert message(b'{"total": 3}').json() == {"total": 3}
    assert (message("grün".encode()).text, message(b"").text) == ("grün", "")
    assert (message(None).text, message(None).json()) == (None, None)
    with pytest.raises(ValueError, match=r"the value of offset 7 is not UTF-8 from byte 1 on: use \.value"):
        print(message(b"a\xff").text)
    for value, said in (
        (b"{'a': 1}", "it begins \"{'a': 1}\""),
        (b"", "it is empty"),
        (b"\xff\xff", "codec"),
        (b"[" * 200_000, "it is nested too deeply"),
    ):
        with pytest.raises(ValueError, match=r"the value of offset 7 is not JSON: ") as caught:
            message(value).json()
        assert said in str(caught.value)


def test_notebooks_show_messages_escaped() -> None:
    block = encode_headers({"a": ["<1>", "2"]})
    message = Message(7, 1_000_000, "s.<b>", b"k", b"<i>\x1b", block, partition=2)
    html = message._repr_html_()
    assert "<th>value</th><td>&lt;i&gt;\\x1b</td>" in html
    assert "<th>header a</th><td>&lt;1&gt;, 2</td>" in html
    assert "<td>s.&lt;b&gt;</td>" in MessageList([message])._repr_html_()
