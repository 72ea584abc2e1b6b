"""The image: what commands come to, and that nothing but commands changes it."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.config import Acks, Durability, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata.commands import AlterStream, Command, CreateStream, DeleteStream, StartBroker
from penstock.metadata.image import ClusterImage, Outcome, altered_config, apply, check_create

ORDERS = StreamConfig(name="orders", subject="orders.>")


def create(config: StreamConfig = ORDERS) -> CreateStream:
    return CreateStream(config=config, created_us=7)


def folded(*commands: Command, image: ClusterImage | None = None) -> tuple[ClusterImage, list[Outcome | RemoteError]]:
    image = image or ClusterImage()
    outcomes = []
    for command in commands:
        image, outcome = apply(image, image.index + 1, command)
        outcomes.append(outcome)
    return image, outcomes


def code_of(outcome: Outcome | RemoteError) -> str:
    assert isinstance(outcome, RemoteError), outcome
    return outcome.code


def test_id_is_the_index_of_the_command() -> None:
    image, outcomes = folded(StartBroker(started_us=1), create())
    state = image.by_name("orders")
    assert (state.stream_id, state.leader_epoch, state.created_us) == (2, 1, 7)
    assert outcomes[1] == Outcome(stream=state, changed=True)


def test_the_same_again_is_the_same_stream() -> None:
    image, outcomes = folded(create(), create())
    assert outcomes[1] == Outcome(stream=image.by_name("orders"), changed=False)
    assert (len(image.streams), image.index) == (1, 2)


def test_another_config_under_the_name_is_refused_and_says_why() -> None:
    other = StreamConfig(name="orders", subject="orders.*", max_bytes=5)
    image, outcomes = folded(create(), create(other))
    assert code_of(outcomes[1]) == ErrorCode.STREAM_EXISTS
    assert isinstance(outcomes[1], RemoteError)
    assert outcomes[1].details["differences"] == {"subject": ["orders.>", "orders.*"], "max_bytes": [None, 5]}
    assert image.by_name("orders").config == ORDERS


def test_created_again_is_another_stream() -> None:
    image, _ = folded(create(), DeleteStream(stream_id=1), create())
    assert image.by_name("orders").stream_id == 3
    with pytest.raises(RemoteError, match="another one") as caught:
        image.by_id(1)
    assert caught.value.code == ErrorCode.STREAM_CHANGED
    with pytest.raises(RemoteError) as caught:
        image.by_id(4)
    assert caught.value.code == ErrorCode.STREAM_NOT_FOUND


@pytest.mark.parametrize("missing", [0, 9, 10**12])
def test_delete_of_nothing(missing: int) -> None:
    image, outcomes = folded(create(), DeleteStream(stream_id=missing))
    assert code_of(outcomes[1]) == ErrorCode.STREAM_NOT_FOUND
    assert image.index == 2


def test_second_delete_finds_it_gone() -> None:
    _, outcomes = folded(create(), DeleteStream(stream_id=1), DeleteStream(stream_id=1))
    assert code_of(outcomes[2]) == ErrorCode.STREAM_CHANGED


def test_alter() -> None:
    image, outcomes = folded(create(), AlterStream(stream_id=1, changes={"max_age_ms": 5, "durability": "os"}))
    config = image.by_name("orders").config
    assert (config.max_age_ms, config.durability, config.subject) == (5, Durability.OS, "orders.>")
    assert isinstance(outcomes[1], Outcome)
    assert outcomes[1].changed


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"subject": "x"}, ["subject"]),
        ({"name": "x", "bogus": 1}, ["name", "bogus"]),
        ({"max_age_ms": 0, "segment_bytes": 1}, ["max_age_ms", "segment_bytes"]),
        ({"max_age_ms": "soon"}, ["max_age_ms"]),
        ({"durability": "hope"}, ["durability"]),
        ({"max_message_bytes": None}, ["max_message_bytes"]),
    ],
)
def test_alter_refuses_with_every_mistake(changes: dict[str, object], named: list[str]) -> None:
    with pytest.raises(RemoteError) as caught:
        altered_config(ORDERS, changes)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert all(name in str(caught.value) for name in named)


def test_alter_cannot_make_what_create_would_refuse() -> None:
    with pytest.raises(RemoteError) as caught:
        altered_config(StreamConfig(name="all", subject=">", acks=Acks.NEVER), {"acks": "reply"})
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_what_was_journaled_is_not_lost_to_stricter_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that allows less starts on what one that allowed more has made."""
    monkeypatch.setattr(limits, "STREAM_NAME_CHARS_MAX", 3)
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", 10)
    monkeypatch.setattr(limits, "STREAMS_MAX", 0)
    image, _ = folded(create(), AlterStream(stream_id=1, changes={"max_message_bytes": 11}))
    assert image.by_name("orders").config.max_message_bytes == 11


def test_a_change_that_is_no_config_changes_nothing() -> None:
    image, outcomes = folded(create(), AlterStream(stream_id=1, changes={"durability": "hope"}))
    assert code_of(outcomes[1]) == ErrorCode.INVALID_CONFIG
    assert image.by_name("orders").config == ORDERS


def test_every_start_raises_every_epoch() -> None:
    image, _ = folded(
        create(), StartBroker(started_us=1), create(StreamConfig(name="b", subject="b")), StartBroker(started_us=2)
    )
    assert (image.by_name("orders").leader_epoch, image.by_name("b").leader_epoch) == (3, 2)


def test_invalid_create_names_every_mistake() -> None:
    with pytest.raises(RemoteError) as caught:
        check_create(ClusterImage(), StreamConfig(name="a b", subject="x..y", max_bytes=0))
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert len(caught.value.details["mistakes"]) == 3


def test_number_of_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS_MAX", 1)
    image, _ = folded(create())
    with pytest.raises(RemoteError) as caught:
        check_create(image, StreamConfig(name="b", subject="b"))
    assert caught.value.code == ErrorCode.TOO_LARGE
    assert check_create(image, ORDERS) is image.by_name("orders")


def test_an_image_never_changes() -> None:
    before, _ = folded(create())
    after, _ = folded(AlterStream(stream_id=1, changes={"max_bytes": 9}), DeleteStream(stream_id=1), image=before)
    assert before.by_name("orders").config == ORDERS
    assert (before.index, after.index, len(after.streams)) == (1, 3, 0)
    with pytest.raises(TypeError):
        before.streams[1] = before.by_name("orders")  # type: ignore[index]


def test_commands_follow_each_other() -> None:
    with pytest.raises(AssertionError):
        apply(ClusterImage(), 2, create())
