"""What the commands on streams say about what was typed."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import StreamConfig, stream_config_mistakes
from penstock.base.errors import ErrorCode, RemoteError
from penstock.cli.stream import streams
from penstock.cli.stream.streams import as_typed, warnings
from penstock.cli.terminal import failure
from penstock.cli.terminal.stream_fields import FIELDS, shown
from penstock.client.errors import NotEnoughReplicas, StreamExists, TimedOut


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_age_ms": 0}, "--max-age: 0s is below 1ms, the least; write none for no limit"),
        ({"segment_bytes": 1}, f"--segment-bytes: 1 is below {limits.SEGMENT_BYTES_MIN // 1024}KiB, the least"),
        ({"max_messages": 0}, "--max-messages: 0 is below 1, the least; write none for no limit"),
        ({"max_message_bytes": 2**40}, "--max-message-bytes: 1TiB is above 64MiB, the most"),
        (
            {"more_subjects": ("b", "b")},
            "SUBJECT: 'b' is given twice: a message on both would be stored twice; keep the wider one",
        ),
        ({"subject": "a..b"}, "SUBJECT: the subject 'a..b' has an empty token"),
        (
            {"deny_purge": True, "allow_rollup": True},
            "--deny-purge: a rollup purges; choose one of --deny-purge and --allow-rollup",
        ),
        ({"name": "no good"}, "NAME: the name 'no good' may hold only letters, digits, '-' and '_'"),
    ],
)
def test_mistakes_are_told_in_the_words_of_the_options(fields: dict[str, object], said: str) -> None:
    config = StreamConfig(**({"name": "a", "subject": "a"} | fields))
    assert [as_typed(mistake) for mistake in stream_config_mistakes(config)] == [said]


def test_an_added_subject_is_told_by_its_option() -> None:
    assert as_typed("subject: it has an empty token", subscribing=True) == "--add-subject: it has an empty token"


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--max-messages-per-subject", "-1", "'-1' is negative"),
        ("--max-messages-per-subject", "x", "'x' is not a whole number"),
        ("--metadata", ["a=1", "b=2", "a=3"], "the key 'a' is given twice"),
    ],
)
def test_values_that_are_none(option: str, text: object, said: str) -> None:
    (field,) = (one for one in FIELDS if one.flag == option)
    with pytest.raises(ValueError, match=f"^{said}$"):
        field.parse(text)


def test_a_level_that_is_too_low_is_told_with_the_option() -> None:
    text = "the option discard of a stream needs feature level 0.4; the cluster is at 0.3"
    with (
        pytest.raises(RemoteError, match=r"^the option --discard of a stream needs") as caught,
        streams._said_as_typed("a"),
    ):
        raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text, feature_level="0.3")
    assert caught.value.details["feature_level"] == "0.3"


def test_a_mistake_of_tomorrow_stays_as_it_is() -> None:
    assert as_typed("the moon is full") == "the moon is full"
    assert as_typed("acks: cannot be so") == "--acks: cannot be so"


def test_a_mistake_names_other_fields_by_their_options() -> None:
    said = as_typed("range_bounds: only partition_by 'range' has any; `replicas` and replicas are another matter")
    assert said == "--range-bounds: only --partition-by 'range' has any; --replicas and replicas are another matter"
    text = "observers: 1 brokers beyond the 2 of `replicas` are to hold a copy each, but the cluster has 2"
    with (
        pytest.raises(NotEnoughReplicas, match=r"^--observers: 1 brokers beyond the 2 of --replicas are"),
        streams._said_as_typed("a"),
    ):
        raise NotEnoughReplicas(ErrorCode.NOT_ENOUGH_REPLICAS, text)


@pytest.mark.parametrize("subject", ["orders.>", "orders.*.eu", ">", "a"])
def test_plain_subjects_and_wildcards_need_no_warning(subject: str) -> None:
    assert list(warnings(subject)) == []


@pytest.mark.parametrize("subject", ["$JS.>", "$SYS.>", "_INBOX.>"])
def test_subjects_of_nats_are_warned_of(subject: str) -> None:
    (said,) = warnings(subject)
    assert "--acks never" in said


@pytest.mark.parametrize("subject", ["x.*y", "x.y>"])
def test_what_only_looks_like_a_wildcard_is_warned_of(subject: str) -> None:
    (said,) = warnings(subject)
    assert "is not a wildcard" in said


@pytest.mark.parametrize(("creating", "undo"), [(True, True), (False, False)])
def test_what_is_not_known_to_have_happened_says_where_to_look_and_how_to_undo_a_creation(
    creating: bool, undo: bool
) -> None:
    with pytest.raises(TimedOut) as caught, streams._said_as_typed("a", creating=creating):
        raise TimedOut("too few")
    (note,) = caught.value.__notes__
    assert "`penstock stream show a` shows" in note
    assert ("`penstock stream delete a` undoes it" in note) == undo


def test_another_config_is_told_in_the_words_of_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = "stream 'a' exists with another config: max_age_ms is 604800000, not None; alter it, or …"
    differences = {
        "max_age_ms": [604_800_000, None],
        "compact": [False, True],
        "subject": ["a.>", "b.>"],
        "storage": ["file", "memory"],
    }
    with pytest.raises(StreamExists) as caught, streams._said_as_typed("a", creating=True):
        raise StreamExists(ErrorCode.STREAM_EXISTS, text, differences=differences)
    assert failure.report(caught.value) == failure.FAILED
    first, advice = capsys.readouterr().err.splitlines()
    told = "--max-age is 7d, not none, --compact is no, not yes, subject is 'a.>', not 'b.>', --storage is file, not "
    assert first == f"Error: stream a exists with another config: {told}memory"
    assert advice.startswith("  --storage cannot be altered: ")


@pytest.mark.parametrize(
    ("field", "have", "want", "told"),
    [
        ("retention", "workqueue", None, "--retention is workqueue, not limits"),
        ("retention", None, "interest", "--retention is limits, not interest"),
        ("allow_message_schedules", None, True, "--allow-message-schedules is no, not yes"),
        ("discard", "new", None, "--discard is new, not old"),
        ("first_offset", 5, None, "--first-offset is 5, not 0"),
        ("deny_purge", None, True, "--deny-purge is no, not yes"),
        ("max_messages_per_subject", 5, None, "--max-messages-per-subject is 5, not none"),
    ],
)
def test_a_field_that_one_of_two_configs_leaves_out_is_told_as_its_default(
    field: str, have: Any, want: Any, told: str
) -> None:
    with pytest.raises(StreamExists, match=rf"config: {told} \["), streams._said_as_typed("a", creating=True):
        raise StreamExists(ErrorCode.STREAM_EXISTS, "it is there", differences={field: [have, want]})


def test_a_refusal_without_differences_stays_as_it_is() -> None:
    with pytest.raises(StreamExists, match="alter it"), streams._said_as_typed("a", creating=True):
        raise StreamExists(ErrorCode.STREAM_EXISTS, "it is there; alter it")


def test_each_default_in_the_help_has_words() -> None:
    defaults = StreamConfig(name="", subject="")
    empty = [f.flag for f in FIELDS if not (f.default or shown(f.name, getattr(defaults, f.name)))]
    assert empty == []
