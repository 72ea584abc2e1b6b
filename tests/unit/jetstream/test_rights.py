"""Rights of the API's user: to some subjects, changed while readers wait; streams that NATS may not carry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.access import Operation, Rule
from penstock.base.limits import RATE_LIMITED_LOG_INTERVAL_MS
from penstock.commitlog.files.files import holds_messages
from penstock.jetstream.gateway import ApiRights
from penstock.jetstream.lookups import UNSENT_BYTES_MAX
from penstock.messages import AlterStreamRequest, ChangeRulesRequest, DeleteUserRequest
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.memory import MemoryVfs
from tests.encryption import encryption_keys
from tests.unit.jetstream.readers.gateways import ReaderBroker
from tests.unit.node.controller.test_audit import acts, passes
from tests.unit.node.security.test_access import allow, asking, user

EU = Rule(Operation.READ, subject="orders.eu.>")
DE = Rule(Operation.READ, subject="orders.*.de")
ALL = Rule(Operation.READ, stream="orders")
READABLE = {1: "orders.eu.de", 3: "orders.us.de", 4: "orders.eu.fr"}  # by sequence
HIDDEN = {2: "orders.us.ny", 5: "orders.us.ny"}
SUBJECTS = {**READABLE, **HIDDEN}


def guarded(*rules: Rule, **settings: Any) -> ReaderBroker:
    """A broker with five messages, whose API acts as bob, who has these rules."""
    broker = ReaderBroker(rights=ApiRights(user="bob"), **settings).start()
    broker.create("orders")
    for sequence in sorted(SUBJECTS):
        broker.publish(SUBJECTS[sequence], b"%d" % sequence)
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        broker.request(user("bob", *rules))
    return broker


def revoke(broker: ReaderBroker, *rules: Rule) -> None:
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name="bob", drop=rules))
    broker.tick(0)


def got(broker: ReaderBroker, request: dict[str, Any]) -> int | None:
    """Sequence of the message that STREAM.MSG.GET answers, or its error's code; DIRECT.GET answers the same."""
    answer = broker.call("STREAM.MSG.GET.orders", request)
    broker.blocks.pop("_INBOX.caller", None)
    inbox = broker.send("DIRECT.GET.orders", request)
    broker.turn()
    block = broker.blocks[inbox].decode()
    found: int = answer["message"]["seq"] if "message" in answer else answer["error"]["code"]
    assert (f"Nats-Sequence: {found}\r\n" in block) or block.startswith(f"NATS/1.0 {found} "), (answer, block)
    return found


def test_a_message_that_may_not_be_read_is_not_found() -> None:
    broker = guarded(EU, DE)
    assert [got(broker, {"seq": sequence}) for sequence in range(1, 7)] == [1, 404, 3, 4, 404, 404]
    refusals = [broker.call("STREAM.MSG.GET.orders", {"seq": sequence})["error"] for sequence in (2, 5, 6)]
    assert refusals[0] == refusals[1] == refusals[2]  # one that may not be read, and one that is not there


def test_the_next_message_is_the_next_that_may_be_read() -> None:
    broker = guarded(EU, DE)
    assert [got(broker, {"seq": begin, "next_by_subj": ">"}) for begin in (1, 2, 4, 5)] == [1, 3, 4, 404]
    assert got(broker, {"seq": 2, "next_by_subj": "orders.eu.*"}) == 4
    assert got(broker, {"last_by_subj": "orders.>"}) == 4
    assert got(broker, {"last_by_subj": "orders.us.de"}) == 3


@pytest.mark.parametrize("subject", ["orders.us.ny", "orders.us.*", "orders.us.>"])
@pytest.mark.parametrize("wanted", ["last_by_subj", "next_by_subj"])
def test_who_names_other_subjects_is_refused_as_penstocks_client_is(subject: str, wanted: str) -> None:
    broker = guarded(EU, DE)
    assert got(broker, {"seq": 1, wanted: subject} if wanted == "next_by_subj" else {wanted: subject}) == 403


def test_a_batch_has_and_counts_what_may_be_read() -> None:
    broker = guarded(EU, DE)
    for request, sequences in (
        ({"seq": 1, "batch": 10}, [1, 3, 4]),
        ({"seq": 2, "batch": 10, "next_by_subj": "orders.eu.>"}, [4]),
        ({"multi_last": ["orders.>"]}, [1, 3, 4]),
    ):
        told = batch(broker, request)
        assert [sequence for sequence, _ in told] == [*sequences, None]
        assert [pending for _, pending in told] == [*range(len(sequences) - 1, -1, -1), 0]


def batch(broker: ReaderBroker, request: dict[str, Any]) -> list[tuple[int | None, int]]:
    """Sequence and `Nats-Num-Pending` of each answer to a batch read; without a sequence: its end."""
    told: list[tuple[int | None, int]] = []
    broker.published.clear()
    broker.send("DIRECT.GET.orders", request)
    broker.turn()
    for command in broker.published:
        for block in command.split(b"NATS/1.0")[1:]:
            fields = dict(line.split(b": ") for line in block.split(b"\r\n\r\n")[0].split(b"\r\n")[1:])
            sequence = fields.get(b"Nats-Sequence")
            told.append((None if sequence is None else int(sequence), int(fields[b"Nats-Num-Pending"])))
    return told


@pytest.mark.parametrize(
    "filters",
    [{}, {"filter_subject": "orders.>"}, {"filter_subject": "orders.>", "deliver_policy": "last_per_subject"}],
)
def test_a_reader_of_all_gets_and_counts_what_may_be_read(filters: dict[str, Any]) -> None:
    broker = guarded(EU, DE)
    info = broker.consumer("orders", "c", deliver_subject="inbox", **filters)
    assert info["num_pending"] == 3
    assert info["config"].get("filter_subject", "") == filters.get("filter_subject", "")
    assert [(one.stream_seq, one.pending) for one in broker.delivered("inbox")] == [(1, 2), (3, 1), (4, 0)]
    for subject in ("orders.us.ny", "orders.eu.it", "orders.us.de"):
        broker.publish(subject, b"new")
    broker.tick(0)
    assert [(one.stream_seq, one.pending) for one in broker.delivered("inbox")] == [(7, 0), (8, 0)]


def test_a_reader_of_other_subjects_is_refused() -> None:
    broker = guarded(EU, DE)
    for one in ({"filter_subject": "orders.us.ny"}, {"filter_subjects": ["orders.eu.de", "orders.us.*"]}):
        assert broker.consumer("orders", "c", deliver_subject="inbox", **one)["error"]["code"] == 403
    assert "error" not in broker.consumer("orders", "c", deliver_subject="inbox", filter_subject="orders.eu.de")
    update = {"name": "c", "deliver_subject": "inbox", "filter_subject": "orders.us.ny"}
    request = {"stream_name": "orders", "action": "update", "config": update}
    assert broker.api("CONSUMER.CREATE.orders.c.orders.us.ny", request)["error"]["code"] == 403
    broker.publish("orders.us.ny", b"new")
    broker.tick(0)
    assert [one.stream_seq for one in broker.delivered("inbox")] == [1]


def test_info_lists_the_subjects_that_may_be_read() -> None:
    broker = guarded(EU, DE)
    for wanted in (">", "orders.>"):
        told = broker.call("STREAM.INFO.orders", {"subjects_filter": wanted})
        assert told["state"]["subjects"] == dict.fromkeys(READABLE.values(), 1)
        assert (told["total"], told["state"]["messages"]) == (3, 5)  # as `list_offsets` tells who reads a part of it
    assert broker.call("STREAM.INFO.orders", {"subjects_filter": "orders.us.ny"})["error"]["code"] == 403


def test_the_number_of_subjects_goes_by_the_rights_of_the_moment() -> None:
    broker = guarded(ALL, EU)
    assert broker.call("STREAM.INFO.orders")["state"]["num_subjects"] == 4
    revoke(broker, ALL)
    assert "num_subjects" not in broker.call("STREAM.INFO.orders")["state"]
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name="bob", add=(ALL,)))
    broker.tick(0)
    assert broker.call("STREAM.INFO.orders")["state"]["num_subjects"] == 4


def test_who_may_delete_on_some_subjects_removes_nothing() -> None:
    broker = guarded(ALL, Rule(Operation.DELETE, subject="orders.eu.>"))
    for operation, request in (("PURGE", {"filter": "orders.eu.>"}), ("PURGE", {}), ("MSG.DELETE", {"seq": 1})):
        assert broker.call(f"STREAM.{operation}.orders", request)["error"]["code"] == 403
    assert broker.call("STREAM.INFO.orders")["state"]["messages"] == 5


def test_a_stream_without_any_right_does_not_exist() -> None:
    broker = guarded(Rule(Operation.READ, stream="other"))
    assert broker.call("STREAM.INFO.orders")["error"]["err_code"] == 10059
    assert broker.call("STREAM.NAMES")["streams"] is None
    assert broker.consumer("orders", "c", deliver_subject="inbox")["error"]["err_code"] == 10059


@pytest.mark.parametrize("how", ["rules", "user"])
def test_readers_end_at_once_when_the_right_is_revoked(how: str) -> None:
    broker = guarded(ALL)
    broker.consumer("orders", "push", deliver_subject="inbox")
    broker.consumer("orders", "pull")
    broker.send("CONSUMER.MSG.NEXT.orders.pull", {"batch": 9, "expires": 60_000_000_000}, "waits")
    assert len(broker.delivered("inbox")) == 5
    if how == "rules":
        revoke(broker, ALL)
    else:
        with asking(broker, "ann"):
            broker.request(DeleteUserRequest(name="bob"))
        broker.tick(0)
    assert [one.status for one in broker.delivered("waits")][-1:] == ["409 Consumer Deleted"]
    broker.publish("orders.eu.de", b"secret")
    broker.tick(0)
    assert broker.delivered() == []
    assert broker.call("CONSUMER.INFO.orders.push")["error"]["code"] in (403, 404)


def test_only_readers_of_what_was_revoked_end() -> None:
    broker = guarded(ALL)
    broker.consumer("orders", "eu", deliver_subject="eu", filter_subject="orders.eu.*")
    broker.consumer("orders", "us", deliver_subject="us", filter_subject="orders.us.*")
    broker.delivered()
    allow(broker, EU)
    revoke(broker, ALL)
    for subject in ("orders.us.ny", "orders.eu.it"):
        broker.publish(subject, b"new")
    broker.tick(200)
    assert [one.inbox for one in broker.delivered()] == ["eu"]
    revoke(broker, EU)
    broker.publish("orders.eu.it", b"new")
    broker.tick(200)
    assert broker.delivered() == []


def test_a_reader_that_is_being_made_is_not_when_the_right_is_revoked() -> None:
    broker = guarded(ALL)
    broker.disk_runs_at_once = False
    config = {"deliver_subject": "inbox", "filter_subject": "orders.eu.*"}
    inbox = broker.send("CONSUMER.CREATE.orders", {"stream_name": "orders", "config": config})
    assert len(broker.disk) == 1
    counted = broker.execute()
    broker.disk_runs_at_once = True
    revoke(broker, ALL)
    assert inbox not in broker.answers
    broker.complete(counted)
    assert json.loads(broker.answers[inbox])["error"]["code"] in (403, 404)
    assert broker.delivered() == []


# What is known of it afterwards


def test_changes_are_audited_as_those_of_the_apis_user() -> None:
    broker = guarded(Rule(Operation.ADMIN))
    passes(broker)
    passes(broker)
    broker.call("STREAM.CREATE.new", {"name": "new", "subjects": ["new.>"]})
    broker.call("STREAM.UPDATE.new", {"name": "new", "subjects": ["new.>"], "max_msgs": 9})
    for subject in ("new.a", "new.b", "new.a"):
        broker.publish(subject, b"x")
    assert broker.call("STREAM.MSG.DELETE.new", {"seq": 1, "no_erase": True})["success"]
    assert broker.call("STREAM.PURGE.new", {"filter": "new.b"})["purged"] == 1
    assert broker.call("STREAM.PURGE.new")["purged"] == 1
    assert broker.call("STREAM.MSG.GET.new", {"seq": 1})["error"]["code"] == 404  # reads are not audited, here as there
    assert broker.call("STREAM.DELETE.new")["success"]
    passes(broker)
    told = [one for one in acts(broker) if one.endswith(" new")]
    changes = ("create_stream", "alter_stream", "delete_messages", "purge_subject", "truncate", "delete_stream")
    assert told == [f"bob {one} new" for one in changes]


def test_denied_requests_are_counted_and_logged_once_a_minute() -> None:
    broker = guarded(EU)
    broker.notices.clear()
    for _ in range(3):
        broker.call("STREAM.DELETE.orders")
        broker.call("DIRECT.GET.orders.orders.us.ny")
    delete, get = broker.notices
    assert delete.startswith("denied: STREAM.DELETE of JetStream's API as user 'bob', stream 'orders': ")
    assert get.startswith("denied: DIRECT.GET of JetStream's API as user 'bob'")
    assert broker.gateway.errors == {("STREAM.DELETE", 10003): 3, ("DIRECT.GET", 10003): 3}
    for _ in range(0, RATE_LIMITED_LOG_INTERVAL_MS, 3_000):
        passes(broker)
    broker.call("STREAM.DELETE.orders")
    assert [one for one in broker.notices if "denied" in one] == [delete, get, delete]


# Streams that NATS may not carry


def encrypted(**config: Any) -> ReaderBroker:
    memory = MemoryVfs()
    broker = ReaderBroker(encrypted=EncryptedVfs(memory, encryption_keys("first"), holds_messages)).start()
    broker.create("secret", "secret", encryption="aes-256-gcm", **config)
    broker.publish("secret", b"classified")
    return broker


def alter(broker: ReaderBroker, *, readable: bool, name: str = "secret") -> None:
    broker.request(AlterStreamRequest(name=name, changes={"nats_readable": readable}))
    broker.tick(0)


def test_an_encrypted_stream_is_read_once_it_is_made_readable() -> None:
    broker = encrypted()
    assert broker.call("STREAM.MSG.GET.secret", {"seq": 1})["error"]["code"] == 403
    assert broker.call("STREAM.INFO.secret", {"subjects_filter": ">"})["error"]["code"] == 403
    assert broker.consumer("secret", "c", deliver_subject="inbox")["error"]["code"] == 403
    alter(broker, readable=True)
    assert "data" in broker.call("STREAM.MSG.GET.secret", {"seq": 1})["message"]
    assert broker.call("STREAM.INFO.secret", {"subjects_filter": ">"})["state"]["subjects"] == {"secret": 1}
    assert broker.consumer("secret", "c", deliver_subject="inbox")["num_pending"] == 1
    assert [one.value for one in broker.delivered("inbox")] == [b"classified"]


def test_readers_end_when_a_stream_is_not_readable_any_more() -> None:
    broker = encrypted(nats_readable=True)
    broker.consumer("secret", "push", deliver_subject="inbox")
    broker.consumer("secret", "pull")
    broker.send("CONSUMER.MSG.NEXT.secret.pull", {"batch": 9, "expires": 60_000_000_000}, "waits")
    assert [one.value for one in broker.delivered("waits")] == [b"classified"]
    alter(broker, readable=False)
    assert [one.status for one in broker.delivered("waits")] == ["409 Consumer Deleted"]
    broker.publish("secret", b"classified, too")
    broker.tick(0)
    assert broker.delivered() == []
    broker.call("CONSUMER.MSG.NEXT.secret.pull", {"batch": 1}, waits_ms=0)
    assert broker.blocks["_INBOX.caller"].startswith(b"NATS/1.0 403 stream secret is encrypted")


def test_a_batch_ends_when_its_stream_is_not_readable_any_more() -> None:
    broker = encrypted(nats_readable=True)
    broker.unsent_bytes = UNSENT_BYTES_MAX + 1
    inbox = broker.send("DIRECT.GET.secret", {"seq": 1, "batch": 5})
    alter(broker, readable=False)
    broker.unsent_bytes = 0
    broker.gateway_tick(100)
    assert broker.blocks[inbox].startswith(b"NATS/1.0 403 stream secret is encrypted")


def test_a_batch_of_a_partition_ends_when_its_stream_is_not_readable_any_more() -> None:
    broker = ReaderBroker().start()
    broker.create("s", "s", partitions=2)
    broker.append("s", b"a", b"b", b"c", subject="s", partition=0)
    broker.tick(1)
    broker.unsent_bytes = UNSENT_BYTES_MAX + 1
    inbox = broker.send("DIRECT.GET.s-p0", {"seq": 1, "batch": 10})
    broker.request(
        AlterStreamRequest(name="s", stream_id=broker.stream_id("s"), changes={"nats_readable": False}),
    )
    broker.unsent_bytes = 0
    broker.gateway_tick(100)
    assert broker.answers[inbox] == b""
    assert broker.blocks[inbox].startswith(b"NATS/1.0 403 stream s-p0 has --nats-readable no")


def test_a_stream_that_is_not_encrypted_can_be_kept_from_nats() -> None:
    broker = ReaderBroker().start()
    broker.create("s", "s", nats_readable=False)
    broker.publish("s", b"x")
    assert "--nats-readable no" in broker.call("STREAM.MSG.GET.s", {"seq": 1})["error"]["description"]
    alter(broker, readable=True, name="s")
    assert broker.call("STREAM.MSG.GET.s", {"seq": 1})["message"]["seq"] == 1
