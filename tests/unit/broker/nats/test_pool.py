"""Which nats-servers are tried, in which order, and what is taken of an announcement."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.base import limits
from penstock.broker.nats.pool import NatsPool, announced_server
from penstock.broker.security.nats_credentials import NatsServer, parse_nats_urls


def _pool(urls: str = "nats://one:1,nats://two:2", **options: bool) -> NatsPool:
    return NatsPool(parse_nats_urls(urls), uses_announced=options.pop("uses_announced", True), random=lambda: 0.5)


def _round(pool: NatsPool, count_max: int = 100) -> list[str]:
    """The servers of a round in which there is time for so many announced ones."""
    left = [count_max]

    def may_go_on() -> bool:
        left[0] -= 1
        return left[0] > 0

    return [str(server).removeprefix("nats://") for server in pool.round(may_go_on)]


def _announce(pool: NatsPool, addresses: Sequence[str]) -> None:
    pool.announce(addresses, NatsServer("one", 1), has_tls=False)


def test_named_servers_are_tried_in_their_order() -> None:
    assert _round(_pool()) == ["one:1", "two:2"]


def test_announced_ones_come_behind_and_not_twice() -> None:
    pool = _pool()
    _announce(pool, ["a:1", "two:2", "b:2", "a:1"])
    assert _round(pool) == ["one:1", "two:2", "a:1", "b:2"]
    assert [str(server) for server in pool.announced] == ["nats://a:1", "nats://b:2"]


def test_of_many_that_take_long_each_has_its_turn() -> None:
    pool = _pool("nats://one:1")
    _announce(pool, ["a:1", "b:1", "c:1"])
    assert [_round(pool, 1) for _ in range(4)] == [
        ["one:1", "a:1"],
        ["one:1", "b:1"],
        ["one:1", "c:1"],
        ["one:1", "a:1"],
    ]
    assert _round(pool, 2) == ["one:1", "b:1", "c:1"]


def test_a_new_announcement_replaces_the_old_one_and_an_empty_one_nothing() -> None:
    pool = _pool("nats://one:1")
    _announce(pool, ["a:1", "b:1"])
    for nothing in ([], ["", "no address"]):
        _announce(pool, nothing)
        assert _round(pool) == ["one:1", "a:1", "b:1"]
    _announce(pool, ["c:1"])
    assert _round(pool) == ["one:1", "c:1"]
    _announce(pool, ["one:1"])
    assert _round(pool) == ["one:1"]


def test_an_announcement_in_the_middle_of_a_round_is_used_in_it() -> None:
    pool = _pool("nats://one:1")
    _announce(pool, ["a:1", "b:1", "c:1"])
    servers = pool.round(lambda: True)
    assert [str(next(servers)) for _ in range(2)] == ["nats://one:1", "nats://a:1"]
    _announce(pool, ["d:1", "e:1"])
    assert [str(server) for server in servers] == ["nats://d:1"]


def test_the_same_ones_in_another_order_keep_their_turns() -> None:
    pool = _pool("nats://one:1")
    _announce(pool, ["a:1", "b:1"])
    assert _round(pool, 1) == ["one:1", "a:1"]
    _announce(pool, ["b:1", "a:1"])
    assert _round(pool, 1) == ["one:1", "b:1"]


def test_announcements_can_be_ignored() -> None:
    pool = _pool(uses_announced=False)
    _announce(pool, ["a:1"])
    assert pool.announced == ()
    assert _round(pool) == ["one:1", "two:2"]


def test_an_announcement_is_bounded() -> None:
    pool = _pool("nats://one:1")
    _announce(pool, [f"a{number}:1" for number in range(limits.NATS_ANNOUNCED_MAX + 5)])
    assert len(pool.announced) == limits.NATS_ANNOUNCED_MAX


@pytest.mark.parametrize(
    "text",
    [
        "", "a", ":1", "a:", "a:0", "a:65536", "a:x", "u:p@a:1", "nats://a:1", "a:1/b", "a b:1", "a\n:1", "a:1,b:2",
        "0.0.0.0:1", "[::]:1", "[::1:1", "\ud7ff", "a" * 300 + ":1", "a:1" + " " * 300, "-:-1", "a:-1", "a:+1", "a:1_0",
    ],
)  # fmt: skip
def test_what_is_no_address_is_left_out(text: str) -> None:
    assert announced_server(text, NatsServer("one"), has_tls=False) is None


@pytest.mark.parametrize(
    ("by", "has_tls", "text", "expected"),
    [
        (NatsServer("one"), False, "a:1", NatsServer("a", 1)),
        (NatsServer("one"), False, "[::1]:1", NatsServer("::1", 1, tls_name="one")),
        (NatsServer("one", user="u", password="p"), False, "a:1", NatsServer("a", 1, user="u", password="p")),
        (NatsServer("one", token="t"), False, "a:1", NatsServer("a", 1, token="t")),
        # Where the connection has TLS, there is no way back to plain text.
        (NatsServer("one"), True, "a:1", NatsServer("a", 1, tls=True)),
        (NatsServer("one", tls=True), True, "a:1", NatsServer("a", 1, tls=True)),
        # A certificate names hosts rather than addresses.
        (NatsServer("one"), True, "10.0.0.1:1", NatsServer("10.0.0.1", 1, tls=True, tls_name="one")),
        (NatsServer("10.0.0.2", tls=True, tls_name="one"), True, "10.0.0.1:1",
         NatsServer("10.0.0.1", 1, tls=True, tls_name="one")),
        (NatsServer("10.0.0.2", tls=True, tls_name="one"), True, "a:1", NatsServer("a", 1, tls=True)),
        (NatsServer("10.0.0.2"), True, "10.0.0.1:1", NatsServer("10.0.0.1", 1, tls=True)),
    ],
)  # fmt: skip
def test_an_announced_server_is_trusted_as_the_one_that_announced_it(
    by: NatsServer, has_tls: bool, text: str, expected: NatsServer
) -> None:
    found = announced_server(text, by, has_tls=has_tls)
    assert found == expected
    assert found is not None
    assert found.verified_host == (expected.tls_name or expected.host)
