"""A budget that many share."""

from __future__ import annotations

from functools import partial

from penstock.base import limits
from penstock.broker.socket_api.shared_budget import SharedBudget, UsersBudget


def test_take_and_give() -> None:
    budget = SharedBudget(10)
    assert budget.take(6)
    assert not budget.take(5)
    assert budget.take(4)
    assert budget.is_full
    assert not budget.take(0), "nothing goes in once it is full"
    budget.give(6)
    assert budget.used == 4
    assert budget.take(0)


def test_who_waits_gets_it_in_turn() -> None:
    budget = SharedBudget(10)
    got: list[str] = []
    assert budget.take(10)
    budget.wait(6, lambda: got.append("first"))
    second = budget.wait(6, lambda: got.append("second"))
    budget.wait(3, lambda: got.append("third"))
    budget.give(5)
    assert got == [], "the third would fit, but the first is before it"
    assert not budget.take(1), "and so would a newcomer"
    budget.give(5)
    assert got == ["first"]
    budget.leave(second)
    assert got == ["first", "third"]
    assert budget.used == 9


def test_large_ones_leave_room_for_small_ones() -> None:
    budget = SharedBudget(100, small_max=5)
    got: list[str] = []
    assert budget.take(75)
    assert not budget.take(6)
    budget.wait(6, lambda: got.append("large"))
    assert all(budget.take(5) for _ in range(5))
    assert budget.is_full
    budget.wait(5, lambda: got.append("small"))
    budget.give(5)
    assert got == ["small"]
    budget.give(75)
    assert got == ["small", "large"]


def test_what_cannot_be_refused_goes_beyond() -> None:
    budget = SharedBudget(10)
    got: list[int] = []
    budget.take_anyway(30)
    budget.wait(0, lambda: got.append(0))
    budget.give(20)
    assert got == []
    budget.give(1)
    assert got == [0]


def test_the_largest_request_fits_the_brokers_buffers() -> None:
    # Else it would wait for ever.
    assert limits.APPEND_BYTES_MAX + limits.REQUEST_BODY_BYTES_MAX <= limits.BROKER_BUFFER_BYTES_MAX * 3 // 4


def test_one_user_leaves_others_their_part() -> None:
    budget = SharedBudget(100)
    taken = 0
    while budget.take(10, "bob"):
        taken += 10
    assert taken == 50
    assert budget.take(20, "eve")
    assert not budget.take(10, "bob")
    assert budget.take(30, "")
    assert budget.is_full
    budget.give(30)
    budget.give(20, "eve")
    assert budget.take(40, "eve"), "the first may be as large as what is left"


def test_the_first_of_a_user_may_be_large() -> None:
    budget = SharedBudget(100)
    assert budget.take(60, "bob")
    assert not budget.take(1, "bob")
    assert budget.take(40, "eve")


def test_who_waits_for_its_own_user_holds_up_nobody() -> None:
    budget = SharedBudget(100)
    got: list[str] = []
    assert budget.take(50, "bob")
    for name in ("bob 0", "bob 1", "bob 2"):
        budget.wait(10, partial(got.append, name), "bob")
    assert budget.take(20, "eve")
    budget.wait(40, lambda: got.append("eve"), "eve")
    assert got == []
    budget.give(20, "eve")
    assert got == ["eve"], "it is the first of hers now"
    assert budget.take(5, "kim"), "nobody waits whom that holds up"
    budget.give(5, "kim")
    budget.give(30, "bob")
    assert got == ["eve", "bob 0"]
    assert not budget.take(5, "bob"), "one of its own waits"


def test_what_a_user_held_is_given_back_for_it() -> None:
    budget = SharedBudget(100)
    bob = UsersBudget(budget).of("bob")
    bob.take_anyway(70)
    assert not bob.take(1)
    bob.give(70)
    assert bob.take(40)
    assert (budget.used, bob.is_full) == (40, False)
