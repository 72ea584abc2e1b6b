"""Who gives way: of the address that holds most, its oldest. Against a list that is looked through each time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.transport.unauthenticated_slots import UnauthenticatedSlots, address_of, is_of_this_machine

PEERS = ("10.0.0.1:1", "10.0.0.2:2", "[2001:db8::1]:3", "10.0.0.1:4")


def test_who_begins_much_and_leaves_it_pushes_out_his_own() -> None:
    places: UnauthenticatedSlots[int] = UnauthenticatedSlots()
    places.take(0, "10.0.0.2:1")  # waits longest of all
    for number in range(1, 1_001):
        places.take(number, f"10.0.0.1:{number}")
        if len(places) > 64:
            places.leave(places.first_to_go())
    assert len(places) == 64
    assert 0 in places
    assert [number for number in range(1, 1_001) if number in places] == list(range(938, 1_001))


@given(
    st.lists(st.tuples(st.sampled_from(["take", "leave", "renew", "go"]), st.integers(0, 9), st.sampled_from(PEERS)))
)
def test_it_is_always_the_oldest_of_the_address_that_holds_most(moves: list[tuple[str, int, str]]) -> None:
    places: UnauthenticatedSlots[int] = UnauthenticatedSlots()
    held: list[tuple[int, str]] = []  # the oldest first
    for move, number, peer in moves:
        there = next((one for one in held if one[0] == number), None)
        if move == "take" and there is None:
            places.take(number, peer)
            held.append((number, address_of(peer)))
        elif move == "leave":
            places.leave(number)
            held = [one for one in held if one != there]
        elif move == "renew":
            places.renew(number)
            if there is not None:
                held.remove(there)
                held.append(there)
        elif move == "go" and held:
            gone = places.first_to_go()
            counts = Counter(address for _, address in held)
            address = dict(held)[gone]
            assert counts[address] == max(counts.values())
            assert gone == next(one for one, of in held if of == address)
            places.leave(gone)
            held = [one for one in held if one[0] != gone]
        assert len(places) == len(held)
        assert all(one in places for one, _ in held)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1:7422", "10.0.0.1"),
        ("::1:5000", "::/64"),
        ("2001:db8:1:2:3:4:5:6:7422", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1:7422", "2001:db8:1:2::/64"),
        ("fe80::1%eth0:7422", "fe80::/64"),
        ("::ffff:10.0.0.1:7422", "10.0.0.1"),
        ("somewhere", ""),
    ],
)
def test_an_address_of_ipv6_is_its_network(peer: str, address: str) -> None:
    assert address_of(peer) == address


@pytest.mark.parametrize(
    ("peer", "own", "is_here"),
    [
        ("127.0.0.1:40000", "127.0.0.1", True),
        ("127.0.0.2:40000", "127.0.0.1", True),
        ("::1:40000", "::1", True),
        ("192.0.2.2:40000", "192.0.2.2", True),  # to an address of its own machine
        ("fd00::2:40000", "fd00::2", True),
        ("fe80::2%eth0:40000", "fe80::2%eth0", True),
        ("192.0.2.3:40000", "192.0.2.2", False),
        ("192.0.2.2:40000", "192.0.2.22", False),
        ("fd00::3:40000", "fd00::2", False),
        ("::ffff:127.0.0.1:40000", "192.0.2.2", False),
    ],
)
def test_who_comes_from_this_machine(peer: str, own: str, is_here: bool) -> None:
    assert is_of_this_machine(peer, own) is is_here
