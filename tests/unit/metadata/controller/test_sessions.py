"""How long the metadata leader has not heard of each broker."""

from __future__ import annotations

from penstock.base.ids import BrokerId, Incarnation
from penstock.metadata.controller.sessions import BrokerSessions
from penstock.metadata.image import BrokerState, ClusterImage
from penstock.metadata.persistent_map import PersistentMap

SESSION_US = 3_000_000


def _image(*live: int) -> ClusterImage:
    brokers = {
        BrokerId(one): BrokerState(
            BrokerId(one),
            f"b{one}:1",
            None,
            f"d{one}",
            Incarnation(1),
            is_live=True,
            clean_stop=True,
            broker_version="1",
        )
        for one in live
    }
    return ClusterImage(brokers=PersistentMap(brokers))


def test_a_broker_is_silent_since_its_last_heartbeat() -> None:
    sessions = BrokerSessions(SESSION_US)
    sessions.restart(_image(1, 2), 10)
    sessions.heartbeat(BrokerId(2), 0, 1_000_010)
    assert sessions.silent_us(2_500_010) == {1: 2_500_000, 2: 1_500_000}


def test_a_new_metadata_leader_counts_from_its_election() -> None:
    sessions = BrokerSessions(SESSION_US)
    sessions.restart(_image(1), 10)
    sessions.heartbeat(BrokerId(1), 0, 20)
    sessions.restart(_image(1), 5_000_000)
    assert sessions.silent_us(5_000_700) == {1: 700}
