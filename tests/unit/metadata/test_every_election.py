"""Whatever happens to two or three replicas, in whatever order, whoever leads has all that was acked.

Each model is walked through to its last state. With the rules as they are, nothing acked is lost that need not be; with
any one of them broken, some model loses it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from penstock.base.config import Durability
from penstock.metadata import elections
from penstock.metadata.image import PartitionState
from penstock.replication.leader import Leadership
from tests.extent import needs_time
from tests.unit.metadata.election_model import Model, ViolationError, explored

MODELS: dict[str, Callable[[], Model]] = {
    "one is fenced, one loses its power": lambda: Model(append=2, fence=1, power=1),
    "killed twice": lambda: Model(append=1, fence=1, kill=2),
    "fsync": lambda: Model(durability=Durability.FSYNC, append=1, fence=1, power=2),
    "an empty disk": lambda: Model(durability=Durability.FSYNC, append=1, power=1, kill=1, wipe=1),
    "a log fails": lambda: Model(durability=Durability.FSYNC, append=1, fence=1, power=1, fail=1),
    "both must be in sync": lambda: Model(min_isr=2, append=1, fence=1, kill=2),
    "loses its power twice": lambda: Model(append=2, power=2),
    "three": lambda: Model(replicas=3, append=1, power=1),
    "three, one is fenced": lambda: Model(replicas=3, append=1, fence=1),
}


LARGEST = "loses its power twice"


@pytest.mark.parametrize("name", [pytest.param(one, marks=[needs_time] * (one == LARGEST)) for one in MODELS])
def test_nothing_acked_is_lost(name: str) -> None:
    assert explored(MODELS[name]()) > 500


# Each rule, broken


def eligible_below_min_isr_only(patch: pytest.MonkeyPatch) -> None:
    """As KIP-966 has it: who is fenced counts only where nothing can be acked without it."""
    left = elections._left

    def _left(partition: PartitionState, broker_id: int) -> PartitionState:
        return replace(left(partition, broker_id), eligible=())

    patch.setattr(elections, "_left", _left)


def commits_beside_rivals(patch: pytest.MonkeyPatch) -> None:
    """A leader acks before the metadata knows that it goes on without those who may lead instead."""
    image = Leadership.image

    def _image(self: Leadership, *args) -> bool:
        image(self, *args)
        self._rivals = ()
        return self._advance_high_watermark()

    patch.setattr(Leadership, "image", _image)


def resumes_before_it_has_synced(patch: pytest.MonkeyPatch) -> None:
    """It says that it goes on while it may lose yet what they have on their disks."""
    patch.setattr(Leadership, "_has_synced", True)


def sure_after_an_unclean_stop(patch: pytest.MonkeyPatch) -> None:
    """Who was killed is taken for one that has all it had."""
    returned = elections.returned
    patch.setattr(elections, "returned", lambda one, back, *args: returned(one, back._replace(clean_stop=True), *args))


def an_empty_disk_counts(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks which disk it is."""
    returned = elections.returned
    patch.setattr(
        elections,
        "returned",
        lambda one, back, *args: returned(one, back._replace(last_data_dir_id=back.data_dir_id), *args),
    )


def the_shortest_log_leads(patch: pytest.MonkeyPatch) -> None:
    """The first of those that are compared."""
    patch.setattr(elections, "_going_on", lambda brokers, ends, beginning: brokers[:1])


MUTATIONS: tuple[tuple[Callable[[pytest.MonkeyPatch], None], str], ...] = (
    (eligible_below_min_isr_only, "one is fenced, one loses its power"),
    (commits_beside_rivals, "fsync"),
    (resumes_before_it_has_synced, "one is fenced, one loses its power"),
    (sure_after_an_unclean_stop, "one is fenced, one loses its power"),
    (an_empty_disk_counts, "an empty disk"),
    (the_shortest_log_leads, "one is fenced, one loses its power"),
)
"""The rule that is broken, and the model that loses something by it."""


@pytest.mark.parametrize(("mutation", "name"), MUTATIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_rule_shows(mutation, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises(ViolationError):
        explored(MODELS[name]())
