"""Who serves JetStream's API with one broker: evidence first, withdrawal until an operator takes it back."""

from __future__ import annotations

from penstock.jetstream.gateway import ApiRights
from penstock.jetstream.ownership import SILENCE_US_MAX, WATCH_US
from penstock.messages import TakeApiRequest, TakeApiResponse
from tests.groups import group_of
from tests.unit.jetstream.api_broker import NO_RESPONDERS, ApiBroker
from tests.unit.node.controller.test_audit import ADMIN, passes, told
from tests.unit.node.security.test_access import asking, user

BOTH = ["$JS.here.API.>", "$JS.API.>"]
OTHER_CLUSTER = (b"NATS/1.0\r\nPenstock-Cluster: other\r\n\r\n", b"{}")
FOREIGN = (None, b'{"type":"io.nats.jetstream.api.v1.account_info_response"}')


def ours(broker: ApiBroker) -> tuple[bytes, bytes]:
    return f"NATS/1.0\r\nPenstock-Cluster: {broker.node.cluster_id}\r\n\r\n".encode(), b"{}"


def test_where_nobody_answers_both_prefixes_are_taken() -> None:
    broker = ApiBroker().start()
    assert broker.served == BOTH
    assert broker.gateway.is_decided
    assert [subject for subject, _ in broker.probes] == ["$JS.here.API.INFO", "$JS.API.INFO"]
    assert broker.call("STREAM.NAMES")["streams"] is None


def test_nothing_is_taken_without_an_answer_and_probes_become_rare() -> None:
    broker = ApiBroker()
    broker.others = None
    broker.start()
    assert broker.served == []
    assert not broker.gateway.is_decided
    due = broker.gateway.next_deadline_us
    assert due is not None
    assert due - broker.clock.elapsed_us <= WATCH_US
    for _ in range(10):
        broker.gateway_tick(SILENCE_US_MAX / 1_000)
    probes = []
    for _ in range(SILENCE_US_MAX // WATCH_US):
        probes.append(len(broker.probes))
        broker.gateway_tick(WATCH_US / 1_000)
    assert len(set(probes)) == 1
    assert len(broker.probes) > probes[0]


def test_what_keeps_nats_server_silent_is_told() -> None:
    """nats-server says that there are no responders only if nobody subscribes there, no monitor on `>` either."""
    broker = ApiBroker()
    broker.others = None
    broker.start()
    broker.gateway_tick(WATCH_US / 1_000)
    assert (broker.gateway.unknown, broker.notices) == ((), [])
    broker.gateway_tick(2 * WATCH_US / 1_000)
    assert len(broker.notices) == len(broker.gateway.unknown) == len(BOTH)
    assert "not served yet here: $JS.API.>: nothing answers there" in broker.notices[1]
    assert "end subscriptions of others to it, as `>` of a monitor" in broker.gateway.unknown[1]
    for _ in range(5):
        broker.gateway_tick(SILENCE_US_MAX / 1_000)
    assert len(broker.notices) == len(BOTH)
    broker.others = NO_RESPONDERS
    broker.gateway_tick(SILENCE_US_MAX / 1_000)
    assert (broker.served, broker.gateway.unknown) == (BOTH, ())
    broker.others = None
    for _ in range(5):
        broker.gateway_tick(SILENCE_US_MAX / 1_000)
    assert (broker.served, broker.gateway.unknown, len(broker.notices)) == (BOTH, (), len(BOTH))


def test_a_jetstream_in_the_server_leaves_the_domain() -> None:
    broker = ApiBroker(has_jetstream=True).start()
    assert broker.served == BOTH[:1]
    (notice,) = broker.notices
    assert "not served as $JS.API.>: broker 1: nats-server has JetStream itself" in notice


def test_brokers_of_one_cluster_share_the_prefixes_and_another_cluster_gets_none() -> None:
    broker = ApiBroker()
    broker.others = OTHER_CLUSTER
    broker.start()
    assert broker.served == []
    assert len(broker.notices) == 2
    assert all("another Penstock cluster answers there" in notice for notice in broker.notices)


def test_who_is_joined_by_another_one_leaves_and_never_comes_back() -> None:
    broker = ApiBroker().start()
    broker.others = ours(broker)
    broker.gateway_tick(WATCH_US / 1_000)
    assert (broker.served, broker.notices) == (BOTH, [])
    broker.others = FOREIGN
    broker.gateway_tick(WATCH_US / 1_000)
    assert broker.served == []
    assert [("$JS.API.>" in notice, "a JetStream answers there" in notice) for notice in broker.notices] == [
        (False, True),
        (True, True),
    ]
    broker.others = NO_RESPONDERS
    for _ in range(5):
        broker.gateway_tick(SILENCE_US_MAX / 1_000)
    broker.connect_api()
    assert broker.served == []
    assert [one.state for one in broker.ask(TakeApiRequest(), TakeApiResponse).apis] == ["waiting", "waiting"]
    broker.gateway_tick(1)
    assert broker.served == BOTH


def test_a_request_on_its_way_is_not_answered_after_the_withdrawal() -> None:
    broker = ApiBroker().start()
    group = [(b"$JS.API.STREAM.NAMES", b"_INBOX.late", None, b"")]
    broker.others = FOREIGN
    broker.gateway_tick(WATCH_US / 1_000)
    broker.gateway.messages_received(group_of(group), broker.clock.now)
    broker.turn()
    assert "_INBOX.late" not in broker.answers


def test_a_new_connection_is_probed_at_once_and_may_have_a_jetstream() -> None:
    broker = ApiBroker().start()
    probes = len(broker.probes)
    broker.connect_api()
    assert len(broker.probes) == probes + 2
    broker.has_jetstream = True
    broker.connect_api()
    assert broker.served == BOTH[:1]


def test_a_refused_subscription_is_told() -> None:
    broker = ApiBroker().start()
    (sid,) = broker.nats.sids("$JS.API.>")
    broker.gateway.refused(sid, "permissions violation")
    broker.turn()
    assert "NATS refuses the subscription: permissions violation" in broker.notices[0]
    assert broker.served == BOTH[:1]


def test_only_a_probe_is_told_the_cluster() -> None:
    broker = ApiBroker().start()
    assert broker.call("INFO", headers=b"NATS/1.0\r\nPenstock-Probe: 1\r\n\r\n") == {
        "type": "io.nats.jetstream.api.v1.account_info_response"
    }
    assert broker.call("INFO")["domain"] == "here"


def test_an_operator_who_takes_it_back_is_in_the_audit_log() -> None:
    broker = ApiBroker(rights=ApiRights(user="ann")).start()
    broker.request(user("ann", ADMIN))
    passes(broker)
    passes(broker)
    broker.others = FOREIGN
    broker.gateway_tick(WATCH_US / 1_000)
    broker.others = NO_RESPONDERS
    with asking(broker, "ann"):
        broker.ask(TakeApiRequest(prefix="$JS.API."), TakeApiResponse)
    passes(broker)
    passes(broker)
    rows = [one for one in told(broker) if one["act"] == "take_api"]  # what brokers found is no act
    assert [(one["by"], one["prefix"]) for one in rows] == [("ann", "$JS.API.")]
