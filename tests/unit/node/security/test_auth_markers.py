"""What a broker asks of others before it knows what is in the metadata."""

from __future__ import annotations

import errno

import pytest

from penstock.access import Operation, Rule
from penstock.base.errors import ErrorCode
from penstock.base.ids import BrokerId
from penstock.messages import MetadataRequest
from penstock.metadata.image import ClusterImage
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.security.auth_markers import AuthMarkers
from penstock.vfs.faulty import FileFault, nth
from penstock.vfs.memory import MemoryVfs
from tests.unit.node.contexts import SetSession, context_of
from tests.unit.node.harness import Broker
from tests.unit.node.security.test_access import user, who

BROKERS = {BrokerId(number): None for number in (1, 2, 3)}


@pytest.fixture
def broker() -> Broker:
    """One with users."""
    broker = Broker().start()
    broker.request(user("ann", Rule(Operation.ADMIN)))
    broker.who = who(broker, "ann")
    return broker


def test_a_broker_that_knew_of_users_asks_for_a_login_whatever_it_has_read(broker: Broker) -> None:
    """A snapshot may be older than the first user, and the log behind it applied only once others are heard."""
    assert "guarded" in broker.memory.list("")
    again = Broker()
    again.memory.open("guarded", create=True)  # as if all of the metadata were yet to come
    again.start()
    assert not again.node.image.users
    assert again.refusal(MetadataRequest()).code == ErrorCode.UNAUTHENTICATED


def test_where_nobody_is_a_user_and_there_is_no_secret_nothing_is_marked() -> None:
    broker = Broker().start()
    broker.create("orders")
    assert not {"guarded", "proving"} & set(broker.memory.list(""))
    assert not broker.node.access.brokers_prove


def test_what_cannot_be_marked_is_marked_with_the_next_change() -> None:
    again = Broker().start()
    again.vfs.plan = nth(0, FileFault(errno.ENOSPC), path_end="guarded")
    again.request(user("ann", Rule(Operation.ADMIN)))
    assert "guarded" not in again.memory.list("")
    assert any("authentication is required" in one for one in again.notices)
    again.who = who(again, "ann")
    again.create("orders")
    assert "guarded" in again.memory.list("")


def test_a_disk_that_is_full_is_not_tried_with_every_tick() -> None:
    """A try blocks, and says so in the log."""
    broker = Broker().start()
    broker.vfs.plan = lambda operation: FileFault(errno.ENOSPC) if operation.path.endswith("guarded") else None
    broker.request(user("ann", Rule(Operation.ADMIN)))
    tried = sum("authentication is required" in one for one in broker.notices)
    assert tried >= 1
    for _ in range(20):
        broker.tick(1_000)
    assert sum("authentication is required" in one for one in broker.notices) <= tried + 2, "but with what is new"


class Marks:
    """Of a broker 1 of three, whose data directory may have something in it."""

    def __init__(self, *, has_data: bool, has_secret: bool = True) -> None:
        self.vfs = MemoryVfs()
        self.image = ClusterImage(brokers=BROKERS)  # type: ignore[arg-type]
        self.has_secret = has_secret
        self.guarded = self.begin(has_data=has_data)

    def begin(self, *, has_data: bool = True) -> AuthMarkers:
        context = context_of(self.vfs, proves_brokers=self.has_secret)
        self.session = SetSession(context)
        self.session.is_current = False
        self.peers = PeerClient(context.outbox)
        guarded = AuthMarkers(context, self.session, self.peers)
        guarded.open(self.image, has_data=has_data)
        return guarded


def test_what_begins_with_a_secret_takes_nobody_without_a_proof_in_any_run() -> None:
    marks = Marks(has_data=False)
    assert marks.guarded.requires_proof
    assert marks.begin().requires_proof, "though it has heard of nothing yet"


def test_a_mark_that_cannot_be_written_holds_for_the_run() -> None:
    broker = Broker(proves_brokers=True)
    broker.vfs.plan = lambda operation: FileFault(errno.ENOSPC) if operation.path.endswith("proving") else None
    broker.start()
    assert "proving" not in broker.memory.list("")
    assert broker.node.access.brokers_prove


def test_a_cluster_that_gets_a_secret_asks_for_proofs_once_all_have_given_theirs() -> None:
    marks = Marks(has_data=True)
    marks.guarded = marks.begin()
    marks.peers.up(BrokerId(2), is_proven=True)
    marks.session.is_current = True
    marks.guarded.update(marks.image)
    assert not marks.guarded.requires_proof
    marks.peers.up(BrokerId(3), is_proven=True)
    marks.session.is_current = False
    marks.guarded.update(marks.image)
    assert not marks.guarded.requires_proof, "there may be brokers of which it has not heard"
    marks.session.is_current = True
    marks.guarded.update(marks.image)
    assert marks.guarded.requires_proof
    assert marks.begin().requires_proof, "nobody else is there, and it is a new run"


def test_without_a_secret_nobody_could_prove_anything() -> None:
    marks = Marks(has_data=False)
    marks.has_secret = False
    assert not marks.begin().requires_proof


def test_where_brokers_prove_who_they_are_nobody_is_served_by_what_may_be_past() -> None:
    """What was missed may be the first user."""
    broker = Broker(proves_brokers=True).start()
    assert broker.node.access.brokers_prove
    broker.create("orders")
    broker.node.access._session.is_started = False
    assert broker.refusal(MetadataRequest()).code == ErrorCode.NOT_YET
