"""Who comes to vote: spread over racks, as far as there are any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import BrokerId
from penstock.metadata.voters import next_voter
from tests.unit.metadata.test_placement import brokers


def odd(count: int) -> int:
    """How many of so many members vote."""
    return min(5, count - (count + 1) % 2)


def grown(racks: str, voters: list[int]) -> list[int]:
    """Who votes in the end, of brokers that are all there from the beginning."""
    image = brokers(len(racks), racks)
    chosen = [BrokerId(one) for one in voters]
    while len(chosen) < odd(len(racks)):
        learners = [BrokerId(one) for one in range(1, len(racks) + 1) if one not in chosen]
        found = next_voter(image, chosen, learners, learners, odd(len(racks)))
        if found is None:
            break
        chosen.append(found)
    return sorted(chosen)


@pytest.mark.parametrize(
    ("racks", "voters", "expected"),
    [
        ("aaabbbccc", [1, 4, 7], [1, 2, 4, 5, 7]),  # one of each machine began: no machine has three of the five
        ("aaaaa", [1], [1, 2, 3, 4, 5]),  # a machine of its own
        ("aaabbb", [1, 2, 3], [1, 2, 3, 4, 5]),  # the second machine comes to have what it can
        ("abb", [1], [1, 2, 3]),  # not two, which survive nothing
        ("abcde", [1], [1, 2, 3, 4, 5]),
    ],
)
def test_voters_are_spread(racks: str, voters: list[int], expected: list[int]) -> None:
    assert grown(racks, voters) == expected


def test_it_is_waited_for_another_rack() -> None:
    image = brokers(5, "aabcd")
    ready = [BrokerId(2)]
    assert next_voter(image, [BrokerId(1)], [BrokerId(one) for one in (2, 3, 4)], ready, 3) is None


@given(st.text("abcd", min_size=1, max_size=12))
def test_no_machine_has_a_majority_where_that_can_be(racks: str) -> None:
    voters = grown(racks, [1])
    wanted = odd(len(racks))
    assert len(voters) == wanted
    most = (wanted - 1) // 2
    if sum(min(racks.count(one), most) for one in set(racks)) >= wanted:
        on_rack = [racks[one - 1] for one in voters]
        assert max(map(on_rack.count, on_rack)) <= most
