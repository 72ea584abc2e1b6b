"""Rates of users, in a time that the test moves."""

from __future__ import annotations

from penstock.access import Quotas
from penstock.access.handshake import Principal
from penstock.base.errors import ErrorCode, RemoteError
from penstock.broker.socket_api.quotas import Usage
from penstock.messages import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
    GetRequest,
    GetResponse,
    MetadataRequest,
)

BOB, ANN = Principal("bob", 1), Principal("ann", 2)
APPEND, FETCH = AppendRequest(stream_id=1), FetchRequest(stream_id=1, offset=0)
APPENDED = AppendResponse(base_offset=0, end_offset=1, timestamp_us=0, leader_epoch=1, fsynced=True)
GET = GetRequest(stream_id=1, key=b"k")
FETCHED = FetchResponse(log_start=0, committed_end=0, base_offset=0, end_offset=0, format_version=1, leader_epoch=1)


class World:
    def __init__(self) -> None:
        self.now_us = 0
        self.quotas: dict[str, Quotas] = {"bob": Quotas(1_000, 2_000, None), "ann": Quotas()}
        self.usage = Usage(lambda who: self.quotas.get(who.name), lambda: self.now_us)

    def told_ms(self, who: Principal, response: AppendResponse | FetchResponse, nbytes: int) -> int:
        """How long whoever is answered is to wait."""
        told = self.usage.answered(who, response, nbytes)
        assert not isinstance(told, RemoteError), told
        return told.throttle_ms

    def wait(self, ms: int) -> None:
        self.now_us += ms * 1_000


def test_what_a_second_gives_is_there_at_once_and_one_request_may_be_as_large_as_any() -> None:
    world = World()
    assert world.usage.asked(BOB, APPEND, 1_000) is None
    assert world.usage.asked(BOB, APPEND, 5_000) is None
    assert world.told_ms(BOB, APPENDED, 0) == 5_001
    refused = world.usage.asked(BOB, APPEND, 1)
    assert refused is not None
    assert (refused.code, refused.details["throttle_ms"]) == (ErrorCode.THROTTLED, 5_001)
    world.wait(5_001)
    assert world.usage.asked(BOB, APPEND, 1) is None
    assert (world.usage.delayed, world.usage.throttled) == (1, 1)


def test_who_waits_as_long_as_he_was_told_is_never_refused() -> None:
    world = World()
    sent = 0
    for size in (10, 3_000, 1, 700, 9_999) * 20:
        assert world.usage.asked(BOB, APPEND, size) is None
        sent += size
        world.wait(world.told_ms(BOB, APPENDED, 0))
    assert sent <= 1_000 * (world.now_us / 1e6 + 1)


def test_what_is_fetched_counts_when_it_is_answered_and_for_itself() -> None:
    world = World()
    assert world.usage.asked(BOB, FETCH, 0) is None
    assert world.told_ms(BOB, FETCHED, 6_000) == 2_001
    assert world.usage.asked(BOB, FETCH, 0) is not None
    assert world.usage.asked(BOB, APPEND, 10) is None
    assert world.usage.asked(BOB, MetadataRequest(), 0) is None


def test_many_fetches_that_have_waited_bring_no_more_than_one() -> None:
    world = World()
    assert all(world.usage.asked(BOB, FETCH, 0) is None for _ in range(600))
    assert world.told_ms(BOB, FETCHED, 6_000) == 2_001
    for _ in range(599):
        refused = world.usage.answered(BOB, FETCHED, 6_000)
        assert isinstance(refused, RemoteError)
        assert (refused.code, refused.details["throttle_ms"]) == (ErrorCode.THROTTLED, 2_001)
    assert world.told_ms(BOB, FETCHED, 0) == 2_001, "what brings nothing is told as it is"
    world.wait(2_001)
    assert world.usage.asked(BOB, FETCH, 0) is None


def test_what_was_looked_through_counts_found_or_not_and_once() -> None:
    world = World()
    got = GetResponse(offset=0, log_start=0, committed_end=1, format_version=1, leader_epoch=1)
    assert world.usage.asked(BOB, GET, 0) is None
    world.usage.looked(BOB, 6_000)  # and nothing was found
    refused = world.usage.asked(BOB, GET, 0)
    assert refused is not None
    assert (refused.code, refused.details["throttle_ms"]) == (ErrorCode.THROTTLED, 2_001)
    # Those that were asked before are told what was found for them, and each counts.
    for waits_ms in (4_001, 6_001):
        told = world.usage.answered(BOB, got, 100, 4_000)
        assert isinstance(told, GetResponse)
        assert told.throttle_ms == waits_ms
    assert isinstance(world.usage.answered(BOB, got, 100), RemoteError)  # nothing was looked through for it
    world.usage.looked(ANN, 1 << 40)
    assert world.usage.asked(ANN, GET, 0) is None


def test_who_has_no_quota_waits_for_nothing() -> None:
    world = World()
    for who in (ANN, Principal("$broker")):
        for _ in range(10):
            assert world.usage.asked(who, APPEND, 1 << 30) is None
            assert world.told_ms(who, APPENDED, 0) == 0


def test_another_quota_counts_from_the_next_request_on() -> None:
    world = World()
    world.usage.asked(BOB, APPEND, 11_000)
    assert world.told_ms(BOB, APPENDED, 0) == 10_001
    world.quotas["bob"] = Quotas(100_000, None, None)
    assert world.told_ms(BOB, APPENDED, 0) == 101
    world.quotas["bob"] = Quotas()
    assert world.usage.asked(BOB, APPEND, 1 << 30) is None
    assert world.told_ms(BOB, FETCHED, 1 << 30) == 0


def test_a_user_that_is_made_anew_owes_nothing_for_the_one_before() -> None:
    world = World()
    assert world.usage.asked(BOB, APPEND, 100_000) is None
    assert world.usage.asked(BOB, APPEND, 1) is not None
    assert world.usage.asked(Principal("bob", 9), APPEND, 1) is None
    assert world.usage.asked(Principal("bob", 1, "token-2"), APPEND, 1) is not None, "with another credential"


def test_of_whom_nothing_is_owed_nothing_is_kept() -> None:
    world = World()
    assert world.usage.asked(BOB, APPEND, 3_000) is None  # of 1,000 a second
    world.usage.answered(BOB, FETCHED, 2_000)
    world.quotas.clear()  # as one who was deleted
    world.wait(900)
    world.usage.sweep()
    assert world.usage.kept == 2
    world.wait(200)
    world.usage.sweep()
    assert world.usage.kept == 1
    world.wait(2_000)
    world.usage.sweep()
    assert world.usage.kept == 0
    world.quotas["bob"] = Quotas(1_000, 2_000, None)
    assert world.usage.asked(BOB, APPEND, 1_000) is None
    assert world.usage.answered(BOB, APPENDED, 0) is APPENDED
