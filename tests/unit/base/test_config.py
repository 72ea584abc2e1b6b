"""A stream's config: every mistake is reported, each with the name of its field."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock.base import limits
from penstock.base.config import (
    ALTERABLE,
    Acks,
    Discard,
    Durability,
    Encryption,
    Retain,
    RetentionPolicy,
    Storage,
    StreamConfig,
    SuspendDeletion,
    check_stream_config,
    irrevocable_mistakes,
    stream_config_mistakes,
    with_altered_subjects,
)
from penstock.base.errors import ConfigError


def with_field(field: str, value: int) -> StreamConfig:
    """A config that can work, but for this one value perhaps."""
    return msgspec.structs.replace(StreamConfig(name="a", subject="a"), **{field: value})


def test_defaults_can_work() -> None:
    config = StreamConfig(name="orders", subject="orders.>")
    assert check_stream_config(config) is config
    assert (config.acks, config.durability, config.storage) == (Acks.REPLY, Durability.AUTO, Storage.FILE)


def test_all_mistakes_are_reported_together() -> None:
    config = StreamConfig(
        name="or ders",
        subject="orders..",
        max_age_ms=0,
        max_messages=-1,
        max_bytes=0,
        max_message_bytes=limits.MESSAGE_BYTES_MAX + 1,
        segment_bytes=1,
        segment_age_ms=2**53 + 1,
    )
    with pytest.raises(ConfigError) as caught:
        check_stream_config(config)
    fields = [mistake.split(":")[0] for mistake in caught.value.mistakes]
    assert fields == [
        "name",
        "subject",
        "max_age_ms",
        "max_messages",
        "max_bytes",
        "max_message_bytes",
        "segment_bytes",
        "segment_age_ms",
    ]
    assert str(caught.value).splitlines() == caught.value.mistakes


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("max_age_ms", 1, 2**53),
        ("max_messages", 1, 2**53),
        ("max_bytes", 1, 2**53),
        ("max_message_bytes", 1, limits.MESSAGE_BYTES_MAX),
        ("segment_bytes", limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX),
        ("segment_age_ms", 1, 2**53),
        ("partitions", 1, limits.STREAM_PARTITIONS_MAX),
        ("replicas", 1, limits.REPLICAS_MAX),
        ("min_isr", 1, limits.REPLICAS_MAX),
    ],
)
def test_bounds_are_within(field: str, low: int, high: int) -> None:
    for value in (low, high):
        assert stream_config_mistakes(with_field(field, value)) == []
    for value in (low - 1, high + 1):
        (mistake,) = stream_config_mistakes(with_field(field, value))
        assert mistake == f"{field}: {value} is not between {low} and {high}"


@pytest.mark.parametrize("subject", [">", "*", "*.a", "*.>"])
def test_replies_are_not_answered_for_everybody(subject: str) -> None:
    (mistake,) = stream_config_mistakes(StreamConfig(name="all", subject=subject))
    assert re.match("acks: .*'envelope' or 'never'", mistake)
    for acks in (Acks.ENVELOPE, Acks.NEVER):
        assert stream_config_mistakes(StreamConfig(name="all", subject=subject, acks=acks)) == []


def test_unknown_and_ill_typed_fields_are_refused_when_parsed() -> None:
    good = {"name": "a", "subject": "a"}
    assert msgspec.convert(good, StreamConfig) == StreamConfig(name="a", subject="a")
    ill_typed = ({"max_bytes": "1"}, {"acks": "maybe"}, {"segment_bytes": None}, {"max_age_ms": 1.5})
    for wrong in ({"colour": "red"}, *ill_typed):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**good, **wrong}, StreamConfig)


def test_alterable_fields_are_fields_and_identity_is_not_among_them() -> None:
    fields = set(StreamConfig.__struct_fields__)
    assert fields > ALTERABLE
    assert fields - ALTERABLE == {
        "name", "subject", "more_subjects", "former_subjects", "storage", "partition_by", "group", "replicas",
        "encryption", "first_offset",
    }  # fmt: skip


def test_deletion_that_is_not_suspended_has_one_form_which_earlier_versions_read() -> None:
    plain = StreamConfig(name="a", subject="a")
    assert StreamConfig(name="a", subject="a", suspend_deletion=SuspendDeletion.NO) == plain
    assert "suspend_deletion" not in msgspec.to_builtins(plain)
    on = msgspec.structs.replace(plain, suspend_deletion=SuspendDeletion.YES)
    assert (on.is_deletion_suspended, plain.is_deletion_suspended) == (True, False)
    assert msgspec.convert(msgspec.to_builtins(on), StreamConfig) == on
    off = msgspec.structs.replace(on, suspend_deletion=SuspendDeletion.NO)
    assert "suspend_deletion" not in msgspec.to_builtins(off)


def test_a_log_that_begins_at_0_has_one_form_which_earlier_versions_read() -> None:
    plain = StreamConfig(name="a", subject="a")
    told = StreamConfig(name="a", subject="a", first_offset=0)
    assert (told, "first_offset" in msgspec.to_builtins(told)) == (plain, False)
    later = msgspec.structs.replace(plain, first_offset=limits.FIRST_OFFSET_MAX)
    assert (later.log_begin, plain.log_begin) == (limits.FIRST_OFFSET_MAX, 0)
    assert (stream_config_mistakes(later), msgspec.convert(msgspec.to_builtins(later), StreamConfig)) == ([], later)
    for wrong in (-1, limits.FIRST_OFFSET_MAX + 1):
        (mistake,) = stream_config_mistakes(msgspec.structs.replace(plain, first_offset=wrong))
        assert mistake.startswith(f"first_offset: {wrong} is not between 0 and")


def test_only_encrypted_streams_are_kept_from_nats_unless_it_is_said() -> None:
    plain = StreamConfig(name="a", subject="a")
    hidden = msgspec.structs.replace(plain, encryption=Encryption.AES_256_GCM)
    for config, default in ((plain, True), (hidden, False)):
        assert config.is_nats_readable is default
        told = msgspec.structs.replace(config, nats_readable=default)
        assert (told, "nats_readable" in msgspec.to_builtins(told)) == (config, False)
        other = msgspec.structs.replace(config, nats_readable=not default)
        assert other.is_nats_readable is not default
        assert msgspec.convert(msgspec.to_builtins(other), StreamConfig) == other


def test_what_0_4_added_is_not_stored_where_it_says_nothing() -> None:
    plain = StreamConfig(name="a", subject="a")
    assert StreamConfig(name="a", subject="a", discard=Discard.OLD, deny_delete=False, deny_purge=False) == plain
    for name in ("discard", "deny_delete", "deny_purge"):
        assert name not in msgspec.to_builtins(plain)
    full = StreamConfig(name="a", subject="a", discard=Discard.NEW, deny_delete=True, deny_purge=True)
    assert (full.refuses_new, full.denies_deletion, full.denies_purge) == (True, True, True)
    assert (plain.refuses_new, plain.denies_deletion, plain.denies_purge) == (False, False, False)
    assert not msgspec.structs.replace(full, suspend_deletion=SuspendDeletion.COPYING).refuses_new
    (mistake,) = stream_config_mistakes(msgspec.structs.replace(full, allow_rollup=True))
    assert mistake.startswith("deny_purge: a rollup purges")


@pytest.mark.parametrize(
    ("fields", "mistake"),
    [
        ({"discard": Discard.NEW, "max_messages_per_subject": 1}, None),
        ({"discard": Discard.NEW, "max_messages_per_subject": 1_000_000}, None),
        ({"max_messages_per_subject": 1}, "it needs discard 'new'"),
        ({"discard": Discard.NEW}, "it needs max_messages_per_subject"),
    ],
)
def test_what_discard_new_per_subject_needs(fields: dict[str, Any], mistake: str | None) -> None:
    config = StreamConfig(name="a", subject="a.>", discard_new_per_subject=True, **fields)
    assert [one.startswith(f"discard_new_per_subject: {mistake}") for one in stream_config_mistakes(config)] == (
        [] if mistake is None else [True]
    )
    assert config.subject_limit is None, "nothing is hidden"
    assert config.refuses_new_per_subject is ("discard" in fields)
    copying = msgspec.structs.replace(config, suspend_deletion=SuspendDeletion.COPYING)
    assert not copying.refuses_new_per_subject
    plain = StreamConfig(name="a", subject="a.>", **fields)
    off = msgspec.structs.replace(config, discard_new_per_subject=False)
    assert (off, off.subject_limit) == (plain, fields.get("max_messages_per_subject"))
    assert "discard_new_per_subject" not in msgspec.to_builtins(off)


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"max_messages_per_subject": 3}, 0),
        ({"max_messages_per_subject": 3, "discard": Discard.NEW}, 0),
        ({"max_messages_per_subject": 3, "discard": Discard.NEW, "max_bytes": 1_000_000}, 0),
        ({"max_messages_per_subject": 3, "discard": Discard.NEW, "max_messages": 9}, 3),
        ({"max_messages_per_subject": 3, "discard": Discard.NEW, "discard_new_per_subject": True}, 3),
        ({"max_messages": 9, "discard": Discard.NEW}, 0),
    ],
)
def test_when_admission_asks_how_many_messages_a_subject_has(fields: dict[str, Any], most: int) -> None:
    config = StreamConfig(name="a", subject="a.>", **fields)
    assert config.admitted_per_subject == most
    for suspended in (SuspendDeletion.YES, SuspendDeletion.COPYING):
        changed = msgspec.structs.replace(config, suspend_deletion=suspended)
        refuses = suspended is SuspendDeletion.YES and "discard_new_per_subject" in fields
        assert changed.admitted_per_subject == (most if refuses else 0)


def test_partitions_need_a_plain_subject() -> None:
    assert stream_config_mistakes(StreamConfig(name="a", subject="a.b", partitions=2)) == []
    for subject in ("a.*", "a.>"):
        (mistake,) = stream_config_mistakes(StreamConfig(name="a", subject=subject, partitions=2))
        assert re.match(
            "partitions: .*wildcards.* only with partition_by.*: create it with partition_by='token:[12]' ", mistake
        )
    both = stream_config_mistakes(StreamConfig(name="a", subject="*.a", partitions=2))
    assert [mistake.split(":")[0] for mistake in both] == ["acks", "partitions"]


def test_the_subject_of_every_partition_is_legal() -> None:
    subject = "a" * (limits.SUBJECT_BYTES_MAX - 2)
    assert stream_config_mistakes(StreamConfig(name="a", subject=subject, partitions=10)) == []
    (mistake,) = stream_config_mistakes(StreamConfig(name="a", subject=subject, partitions=11))
    assert mistake == "partitions: on the last partition, the subject is 1025 bytes long; the limit is 1024"


def test_no_more_in_sync_replicas_than_replicas() -> None:
    (mistake,) = stream_config_mistakes(StreamConfig(name="a", subject="a", replicas=3, min_isr=4))
    assert mistake == "min_isr: 4 is not between 1 and 3"


def _with(*subjects: str, **config: Any) -> StreamConfig:
    return StreamConfig(name="a", subject=subjects[0], more_subjects=subjects[1:], **config)


def test_a_stream_without_further_subjects_is_written_as_earlier_versions_read_it() -> None:
    plain = StreamConfig(name="a", subject="a")
    assert _with("a", description="", metadata={}) == plain
    assert msgspec.to_builtins(_with("a")) == msgspec.to_builtins(plain)
    assert {"more_subjects", "former_subjects", "description", "metadata"}.isdisjoint(msgspec.to_builtins(plain))
    several = _with("a", "b", description="d", metadata={"k": "v"})
    assert msgspec.convert(msgspec.to_builtins(several), StreamConfig) == several
    assert (several.subjects, plain.subjects) == (("a", "b"), ("a",))
    assert several.listening_patterns == ("a", "b")  # it never gets partitions with subjects of their own


@pytest.mark.parametrize(
    ("subjects", "named"),
    [
        (("orders.>", "orders.eu"), "'orders.>' and 'orders.eu' overlap"),
        (("a.*.c", "b", "a.b.*"), "'a.*.c' and 'a.b.*' overlap"),
        (("a", "b", "a"), "'a' is given twice"),
        (("a", "b c"), "'b c' holds white space"),
        (("a", ""), "the subject is empty"),
        ((*(f"s{n}" for n in range(limits.STREAM_SUBJECTS_MAX)), "one.more"), "at most 100 subjects"),
        (("*.a", "$JS.x.y"), "'*.a' begins with a wildcard, which takes nothing of NATS's own subjects, as '$JS.x.y'"),
    ],
)
def test_subjects_that_do_not_go_together_are_named(subjects: tuple[str, ...], named: str) -> None:
    (mistake,) = stream_config_mistakes(_with(*subjects, acks=Acks.NEVER))
    assert mistake.startswith("subject: ")
    assert named in mistake


def test_former_subjects_are_bounded_and_are_subjects() -> None:
    for former, named in (
        (("a..b",), "has an empty token"),
        (("x",) * 101, "101 subjects were removed from the stream; the limit is 100"),
    ):
        (mistake,) = stream_config_mistakes(StreamConfig(name="a", subject="a", former_subjects=former))
        assert mistake.startswith("former_subjects: ")
        assert named in mistake


def test_every_subject_is_looked_at_by_acks_tokens_and_partitions() -> None:
    (mistake,) = stream_config_mistakes(_with("a", "*.b"))
    assert mistake.startswith("acks: the subject '*.b' begins with a wildcard")
    (mistake,) = stream_config_mistakes(_with("a.*", "b", partitions=2, partition_by="token:2"))
    assert "'b' has no token 2" in mistake
    assert stream_config_mistakes(_with("a.*", "b.*", partitions=2, partition_by="token:2")) == []
    for how in ("publisher", "mapped"):
        (mistake,) = stream_config_mistakes(_with("a", "b", partitions=2, partition_by=how))
        assert mistake.startswith("subject: ")
        assert "<PartitionBy" not in mistake, "a value as the user writes it"
        assert stream_config_mistakes(_with("a", "b", partition_by=how)) == []


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"description": "d" * 4_097}, "description: it has 4097 bytes; the limit is 4096"),
        ({"metadata": {"": "v"}}, "metadata: the value 'v' has no key"),
        ({"metadata": {"k": "v" * 8_192}}, "metadata: its keys and values have 8193 bytes; the limit is 8192"),
        ({"metadata": {str(n): "" for n in range(101)}}, "metadata: it has 101 entries; the limit is 100"),
    ],
)
def test_description_and_metadata_are_bounded(config: dict[str, Any], named: str) -> None:
    assert stream_config_mistakes(StreamConfig(name="a", subject="a", **config)) == [named]


def test_subjects_come_and_go_and_the_first_that_stays_is_the_first() -> None:
    config = with_altered_subjects(StreamConfig(name="a", subject="a"), ["b", "c"], [])
    assert config.subjects == ("a", "b", "c")
    config = with_altered_subjects(config, ["d", "b"], ["a"])
    assert (config.subject, config.subjects, config.held_subjects) == ("b", ("b", "c", "d"), ("b", "c", "d", "a"))
    config = with_altered_subjects(config, ["a"], ["c"])
    assert (config.subjects, config.held_subjects[3:]) == (("b", "d", "a"), ("c",))
    config = with_altered_subjects(config, ["c.>"], ["a", "b"])
    assert (config.subjects, set(config.held_subjects[2:])) == (("d", "c.>"), {"a", "b", "c"})
    config = with_altered_subjects(config, [">"], ["d", "c.>"])
    assert config.held_subjects == (">",)  # it covers all former ones


@pytest.mark.parametrize(
    ("add", "remove", "named"),
    [
        ([], ["a", "b"], "remove_subjects: a stream has a subject, and 'a' is its last one"),
        ([], ["x"], "remove_subjects: 'x' is none of the stream's, which are 'a', 'b'"),
        (["*"], [], "add_subjects: 'a' and '*' overlap"),
    ],
)
def test_a_change_that_cannot_be_is_refused(add: list[str], remove: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        with_altered_subjects(_with("a", "b"), add, remove)


@pytest.mark.parametrize("policy", [RetentionPolicy.WORKQUEUE, RetentionPolicy.INTEREST])
def test_what_does_not_go_with_messages_that_acks_remove(policy: RetentionPolicy) -> None:
    plain = StreamConfig(name="a", subject="a", retention=policy)
    assert stream_config_mistakes(plain) == []
    assert (plain.is_consumed, plain.drops_unwanted) == (True, policy is RetentionPolicy.INTEREST)
    others: tuple[tuple[dict[str, Any], str], ...] = (
        ({"compact": True}, "with 'compact'"),
        ({"retain": Retain.UNTIL_ARCHIVED}, "does not wait for archives"),
        ({"group": "g"}, "of a group"),
        ({"partitions": 2}, "each partition has its own consumers"),
        ({"name": "__a", "subject": "$PENSTOCK.a"}, "an internal stream"),
    )
    for fields, text in others:
        found = stream_config_mistakes(msgspec.structs.replace(plain, **fields))
        assert [one for one in found if one.startswith("retention: ") and text in one], (fields, found)
    for fields in ({"max_messages_per_subject": 1}, {"max_age_ms": 5}, {"storage": Storage.MEMORY}):
        assert stream_config_mistakes(msgspec.structs.replace(plain, **fields)) == []


def test_a_stream_with_the_retention_of_limits_is_stored_as_before() -> None:
    plain = StreamConfig(name="a", subject="a")
    assert StreamConfig(name="a", subject="a", retention=RetentionPolicy.LIMITS) == plain
    assert (plain.retention_policy, plain.is_consumed) == (RetentionPolicy.LIMITS, False)
    assert "retention" not in msgspec.to_builtins(plain)


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        ("limits", "interest", False),
        ("interest", "limits", False),
        ("workqueue", "workqueue", False),
        ("limits", "workqueue", True),
        ("workqueue", "limits", True),
        ("interest", "workqueue", True),
    ],
)
def test_a_retention_is_changed_as_in_jetstream(before: str, after: str, is_refused: bool) -> None:
    one, other = (StreamConfig(name="a", subject="a", retention=RetentionPolicy(name)) for name in (before, after))
    text = f"retention: cannot be changed from '{before}' to '{after}': make another stream"
    assert irrevocable_mistakes(one, other) == ([text] if is_refused else [])
