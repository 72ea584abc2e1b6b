"""Who leads one partition: what the stories of whole clusters do not come to."""

from __future__ import annotations

import pytest

from penstock.base.ids import BrokerId, LeaderEpoch
from penstock.metadata.elections import BrokerReturn, ElectionRules, returned
from penstock.metadata.image import PartitionState

ONE, TWO = BrokerId(1), BrokerId(2)
BACK = BrokerReturn(ONE, clean_stop=True, data_dir_id="d", last_data_dir_id="d")


@pytest.mark.parametrize(("is_in_memory", "leader"), [(False, ONE), (True, None)])
def test_only_what_is_on_a_disk_is_still_there_after_a_clean_stop(is_in_memory: bool, leader: BrokerId | None) -> None:
    rules = ElectionRules(2, allow_unclean_election=False, is_in_memory=is_in_memory)
    partition = PartitionState((ONE, TWO), (TWO,), (ONE,), None, LeaderEpoch(3), 7)
    assert returned(partition, BACK, {ONE}, rules).partition.leader == leader
