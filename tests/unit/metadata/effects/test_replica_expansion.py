"""Replicas are added behind those that there are, and nobody is in sync before it has what the others have."""

from __future__ import annotations

import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, StreamId
from penstock.metadata.commands import AddReplicas, Command, CreateStream, RegisterBroker
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import BrokerLoad, ClusterImage, CommandOutcome
from penstock.metadata.persistence.snapshot import decode_image, encode_image

STREAM = StreamId(5)


def register(number: int) -> RegisterBroker:
    return RegisterBroker(
        broker_id=BrokerId(number),
        data_dir_id=f"disk-{number}",
        address=f"h:{number}",
        rack=None,
        broker_version="0.2.0",
        clean_stop=False,
        registered_us=7,
    )


def after(image: ClusterImage, *commands: Command) -> ClusterImage:
    for command in commands:
        image, outcome = apply(image, image.index + 1, command)
        assert isinstance(outcome, CommandOutcome), outcome
    return image


@pytest.fixture
def image() -> ClusterImage:
    """Four brokers, and a stream of two partitions that one of them holds and another observes."""
    config = StreamConfig(name="s", subject="s", partitions=2, observers=1, partition_by="key")
    made = CreateStream(config=config, created_us=7, assignments=held((1,), (1,)), observers=held((4,), (4,)))
    return after(ClusterImage(), *map(register, (1, 2, 3, 4)), made)


def held(*partitions: tuple[int, ...]) -> tuple[tuple[BrokerId, ...], ...]:
    return tuple(tuple(map(BrokerId, one)) for one in partitions)


def test_who_is_added_is_not_in_sync_and_leads_nothing(image: ClusterImage) -> None:
    widened = after(image, AddReplicas(stream_id=STREAM, assignments=held((1, 2), (1, 3))))
    before, state = image.by_id(STREAM), widened.by_id(STREAM)
    assert (state.config.replicas, state.config.min_isr) == (2, before.config.min_isr)
    for one, was, replicas in zip(state.partitions, before.partitions, held((1, 2), (1, 3)), strict=True):
        assert one.replicas == replicas
        assert (one.isr, one.leader, one.leader_epoch, one.observers) == (
            was.isr, was.leader, was.leader_epoch, was.observers,
        )  # fmt: skip
        assert one.version == was.version + 1, "a change of the ISR that was proposed before is refused"
    assert widened.loads[BrokerId(3)] == BrokerLoad(0, 1)
    assert decode_image(encode_image(widened)) == widened
    again = after(widened, AddReplicas(stream_id=STREAM, assignments=held((1, 2, 3), (1, 3, 2))))
    assert again.by_id(STREAM).config.replicas == 3


@pytest.mark.parametrize(
    ("assignments", "code"),
    [
        (held((2, 1), (1, 2)), ErrorCode.STREAM_CHANGED),
        (held((1, 2)), ErrorCode.STREAM_CHANGED),
        (held((1, 2), (1,)), ErrorCode.BAD_REQUEST),
        (held((1,), (1,)), ErrorCode.BAD_REQUEST),
        (held((1, 2, 2), (1, 2, 3)), ErrorCode.BAD_REQUEST),
        (held((1, 4), (1, 2)), ErrorCode.BAD_REQUEST),
        (held((1, 9), (1, 2)), ErrorCode.BAD_REQUEST),
    ],
)
def test_what_does_not_fit_is_refused(image: ClusterImage, assignments: tuple, code: ErrorCode) -> None:  # type: ignore[type-arg]
    changed, outcome = apply(image, image.index + 1, AddReplicas(stream_id=STREAM, assignments=assignments))
    assert isinstance(outcome, RemoteError)
    assert outcome.code == code
    assert changed.by_id(STREAM) == image.by_id(STREAM)
