"""What JetStream tells, as rows of the log and as a config here."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base import limits
from penstock.base.config import (
    Acks,
    Compression,
    Discard,
    RetentionPolicy,
    Storage,
    StreamConfig,
    stream_config_mistakes,
)
from penstock.batch.schema import arrow_schema
from penstock.client.errors import InvalidConfig
from penstock.metadata.feature_versions import CONFIG_FIELDS
from penstock.ops.jetstream.config import mapped
from penstock.ops.jetstream.source import JetStreamRows, UnstorableError, place_of


def test_the_place_of_a_delivery_is_in_its_reply_subject() -> None:
    assert place_of(b"$JS.ACK.ORDERS.c1.1.42.7.1700000000123456789.5") == (42, 1_700_000_000_123_456)
    assert place_of(b"$JS.ACK.hub.ACCHASH.ORDERS.c1.1.42.7.1700000000123456789.5.rnd") == (42, 1_700_000_000_123_456)


def test_rows_have_the_schema_of_the_log_and_times_never_go_back() -> None:
    rows = JetStreamRows(last_us=1_000)
    rows.add(5, 900, b"a", None, b"1")
    rows.add(7, 2_000, b"a.b", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", b"2")
    rows.add(8, 1_999, b"a", b"NATS/1.0\r\nPenstock-Key: k\r\n\r\n", b"3")
    rows.add(9, 2_001, b"a", b"NATS/1.0\r\nPenstock-Key-Base64: /wA=\r\nPenstock-Tombstone: 1\r\n\r\n", b"")
    assert (len(rows), rows.raised) == (4, 2)
    batch = rows.take()
    assert batch.schema == arrow_schema()
    assert batch.column("offset").to_pylist() == [4, 6, 7, 8]
    assert batch.column("timestamp").cast("int64").to_pylist() == [1_000, 2_000, 2_000, 2_001]
    assert batch.column("key").to_pylist() == [None, None, b"k", b"\xff\x00"]
    assert batch.column("value").to_pylist() == [b"1", b"2", b"3", None]
    assert batch.column("headers").to_pylist()[1] == b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
    assert (len(rows), rows.size_bytes) == (0, 0)


UNSTORABLE = [
    (b"a.caf\xe9", None, b"", r"its subject 'a.caf\xe9' is not UTF-8"),
    (b"a.\x07", None, b"", "holds white space or a control character"),
    (b"b", None, b"", "its subject 'b' is not on 'a.>'"),
    (b"a.b", None, b"x" * 101, "it has 101 bytes, and the limit is 100"),
    (b"a.b", b"NATS/1.0\r\nA: b\r\n\r\n", b"x" * 90, "it has 108 bytes, and the limit is 100"),
]


@pytest.mark.parametrize(("subject", "headers", "value", "why"), UNSTORABLE)
def test_what_a_stream_cannot_hold_is_named_or_passed_over(
    subject: bytes, headers: bytes | None, value: bytes, why: str
) -> None:
    rows = JetStreamRows(0, patterns=("a.>",), bytes_max=100)
    with pytest.raises(UnstorableError) as refused:
        rows.add(5, 900, subject, headers, value)
    assert str(refused.value).startswith("the message with sequence 5 cannot be stored: ")
    assert why in str(refused.value)
    assert (refused.value.seq, refused.value.is_large, len(rows)) == (5, "limit" in why, 0)
    skipping = JetStreamRows(0, patterns=("a.>",), bytes_max=100, skips=True)
    skipping.add(5, 900, subject, headers, value)
    skipping.add(6, 901, "a.\u00a0".encode(), None, b"x" * 100)
    assert (len(skipping), skipping.skipped, [seq for seq, _ in skipping.skips_told]) == (1, 1, [5])
    assert skipping.take().column("offset").to_pylist() == [5]


def test_a_key_that_is_no_base64_is_a_header_like_others() -> None:
    rows = JetStreamRows(0)
    rows.add(1, 1, b"a", b"NATS/1.0\r\nPenstock-Key-Base64: no base64\r\n\r\n", b"1")
    assert rows.take().column("key").to_pylist() == [None]


def test_without_a_limit_there_the_most_is_the_limit_here() -> None:
    found = mapped(PLAIN, name="o", subject=None, replicas=None, brokers=1).config()
    assert found.max_message_bytes == limits.MESSAGE_BYTES_MAX


PLAIN = {"name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "num_replicas": 1}


def test_limits_come_along() -> None:
    config = {
        **PLAIN,
        "max_msgs": 1_000,
        "max_bytes": -1,
        "max_age": 3_600_000_000_000,
        "max_msg_size": 4_096,
        "duplicate_window": 120_000_000_000,
        "storage": "memory",
        "compression": "s2",
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "num_replicas": 3,
        "discard": "new",
        "deny_delete": True,
    }
    found = mapped(config, name="orders", subject=None, replicas=None, brokers=2)
    made = found.config()
    assert (made.name, made.subject, made.max_messages, made.max_bytes) == ("orders", "orders.>", 1_000, None)
    assert (made.max_age_ms, made.max_message_bytes, made.dedup_window_ms) == (3_600_000, 4_096, 120_000)
    assert (made.storage, made.compression) == (Storage.MEMORY, Compression.LZ4)
    assert (made.allow_rollup, made.allow_message_ttl, made.replicas) == (True, True, 2)
    assert (made.discard, made.denies_deletion, made.denies_purge) == (Discard.NEW, True, False)
    assert [note for note in found.notes if "3 replicas" in note]
    assert mapped(config, name="o", subject=None, replicas=3, brokers=2).config().replicas == 3


@pytest.mark.parametrize("most", [-1, 1, 3])
def test_a_limit_by_subject_that_refuses(most: int) -> None:
    config = {**PLAIN, "discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": most}
    found = mapped(config, name="o", subject=None, replicas=None, brokers=1)
    assert stream_config_mistakes(found.config()) == []
    assert found.config().refuses_new_per_subject is (most > 0)
    assert found.notes == ()


def test_what_has_no_equal_is_said() -> None:
    config = {**PLAIN, "retention": "interest", "mirror": {"name": "X"}}
    notes = " ".join(mapped(config, name="o", subject=None, replicas=None, brokers=1).notes)
    for word in ("interest", "mirror"):
        assert word in notes
    assert mapped(PLAIN, name="o", subject=None, replicas=None, brokers=1).notes == ()


def test_interest_is_left_out_as_the_consumers_come_later() -> None:
    found = mapped({**PLAIN, "retention": "interest"}, name="o", subject=None, replicas=None, brokers=1)
    assert not found.config().is_consumed
    (note,) = found.notes
    assert note.startswith("JetStream's stream has retention interest: ")
    assert "a cut-over sets it, or `penstock stream alter o --retention interest`" in note


def test_a_work_queue_stays_one_as_no_stream_can_become_one_later() -> None:
    found = mapped({**PLAIN, "retention": "workqueue"}, name="o", subject=None, replicas=None, brokers=1)
    assert found.config().retention_policy is RetentionPolicy.WORKQUEUE
    assert stream_config_mistakes(found.config()) == []
    assert found.notes == ()


def test_fields_at_their_defaults_are_left_out() -> None:
    """Below feature level 0.4 a cluster refuses some of them whatever their values are."""
    there = {**PLAIN, "deny_delete": False, "deny_purge": False, "max_msgs_per_subject": -1, "discard": "old"}
    there |= {"subject_delete_marker_ttl": 0, "allow_msg_ttl": False, "discard_new_per_subject": False, "metadata": {}}
    found = mapped(there, name="o", subject=None, replicas=None, brokers=1)
    assert found.fields.keys() == {"dedup_window_ms", "max_message_bytes", "replicas"}
    assert list(used_fields(found.config())) == []


def used_fields(config: StreamConfig) -> list[str]:
    return [name for name in CONFIG_FIELDS if getattr(config, name) not in (msgspec.UNSET, None)]


MARKERS = {"allow_rollup_hdrs": True, "allow_msg_ttl": True}


@pytest.mark.parametrize(
    ("marker_ns", "more", "here_ms"), [(10**9, MARKERS, 1_000), (10**9, {}, 0), (10**6, MARKERS, 0)]
)
def test_the_ttl_of_delete_markers_is_mapped_or_told(marker_ns: int, more: dict[str, bool], here_ms: int) -> None:
    config = {**PLAIN, **more, "subject_delete_marker_ttl": marker_ns}
    found = mapped(config, name="o", subject=None, replicas=None, brokers=1)
    assert stream_config_mistakes(found.config()) == []
    assert found.config().marker_ttl_ms == here_ms
    assert bool(found.notes) is (here_ms == 0)
    assert all("subject_delete_marker_ttl" in note for note in found.notes)


def test_all_that_is_not_imported_is_told() -> None:
    config = {**PLAIN, "allow_msg_counter": True, "placement": {"tags": ["a"]}, "max_consumers": 3, "first_seq": 5}
    found = mapped(config, name="o", subject=None, replicas=None, brokers=1)
    notes = [note.split(":")[0].split()[-1] for note in found.notes]
    assert notes == ["max_consumers", "placement", "allow_msg_counter"]
    assert found.config().log_begin == 0  # the import places messages at their sequences anyway


def test_a_subject_that_cannot_be_acked_is_not() -> None:
    for config in ({**PLAIN, "subjects": [">"]}, {**PLAIN, "no_ack": True}):
        assert mapped(config, name="o", subject=None, replicas=None, brokers=1).config().acks is Acks.NEVER


def test_all_subjects_are_taken_unless_one_is_chosen() -> None:
    config = {**PLAIN, "subjects": ["a", "b.>"], "description": "d", "metadata": {"k": "v", "_nats.level": "1"}}
    found = mapped(config, name="o", subject=None, replicas=None, brokers=1).config()
    assert (found.subjects, found.description, found.metadata) == (("a", "b.>"), "d", {"k": "v"})
    assert mapped(config, name="o", subject="b.>", replicas=None, brokers=1).subjects == ("b.>",)
    long = mapped({**config, "description": "d" * 5_000}, name="o", subject=None, replicas=None, brokers=1)
    assert long.config().description is msgspec.UNSET
    assert any("description" in note for note in long.notes)


@pytest.mark.parametrize("subjects", [[], None])
def test_a_subject_is_chosen_where_there_is_none(subjects: list[str] | None) -> None:
    config = {**PLAIN, "subjects": subjects}
    with pytest.raises(InvalidConfig, match="choose with --subject"):
        mapped(config, name="o", subject=None, replicas=None, brokers=1)
    assert mapped(config, name="o", subject="b", replicas=None, brokers=1).subjects == ("b",)
