"""What may be told to others as an address: nothing that the look-up of names answers with an unexpected error."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.addresses import ADDRESS_CHARS_MAX, is_address, parse_address


@pytest.mark.parametrize("text", ["h:1", "127.0.0.1:7422", "[::1]:7422", "b-1.example.org:65535", "bücher.example:1"])
def test_what_is_an_address(text: str) -> None:
    assert is_address(text)
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:99999",
        "host:0",
        "host:" + "9" * 5_000,
        "[::1",
        "[::1:1",
        "a..b:1",
        ".:1",
        "a" * 64 + ".example:1",
        "a\0b:1",
        "a\nb:1",
        "a,b:1",
        "http://a:1",
        "a" * ADDRESS_CHARS_MAX + ":1",
    ],
)
def test_what_is_none(text: str) -> None:
    assert not is_address(text)


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=80))
def test_the_look_up_of_what_passes_fails_with_an_os_error_at_worst(host: str) -> None:
    if is_address(f"{host}:1"):
        with suppress(OSError):
            socket.getaddrinfo(parse_address(f"{host}:1").host, 1, flags=socket.AI_NUMERICHOST)


@pytest.mark.parametrize(
    ("text", "expected"), [("10.0.0.1:1", True), ("[fe80::1%eth0]:1", True), ("a.example:1", False)]
)
def test_a_host_is_an_ip_address_or_a_name(text: str, expected: bool) -> None:
    assert parse_address(text).is_literal == expected


@pytest.mark.parametrize(
    "text",
    ["user:SECRET@h:1", "nats://user:SECRET@h:1", "user:SE@CRET@h:1/x?SECRET", "user:SECRET@h", "SECRET@[::1]:1"],
)
def test_no_part_of_a_login_is_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no login.*write HOST:PORT, as in '(h|h:1|\[::1\]:1)'$"):
        parse_address(text)


def test_a_scheme_is_told() -> None:
    with pytest.raises(ValueError, match=r"no scheme \(http://\): write HOST:PORT, as in 'a:1'$"):
        parse_address("http://a:1/x")
