"""Names of streams, and of partitions as JetStream's API shows them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata.commands import AddPartitions, Command, CreateStream, RaiseFeatureLevel
from penstock.metadata.effects.apply import apply
from penstock.metadata.effects.partition_expansion import check_growth
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.metadata.partition_names import parsed_name

RAISED = RaiseFeatureLevel(feature_level=(0, 4))


def stream(name: str, partitions: int = 1, **config: Any) -> CreateStream:
    wanted = StreamConfig(name=name, subject=name, partitions=partitions, partition_by="group", **config)
    return CreateStream(config=wanted, created_us=7)


def more(image: ClusterImage, name: str, before: int, count: int = 1) -> AddPartitions:
    return AddPartitions(stream_id=image.by_name(name).stream_id, before=before, assignments=((BrokerId(1),),) * count)


def after(image: ClusterImage, *commands: Command) -> ClusterImage:
    for command in commands:
        image, outcome = apply(image, image.index + 1, command)
        assert isinstance(outcome, CommandOutcome), outcome
    return image


def refusal(image: ClusterImage, command: Command) -> RemoteError | None:
    left, outcome = apply(image, image.index + 1, command)
    if isinstance(outcome, CommandOutcome):
        return None
    assert left.streams is image.streams
    return outcome


def test_no_stream_takes_the_name_of_a_partition() -> None:
    image = after(ClusterImage(), RAISED, stream("s", 3), stream("one"))
    for name in ("s-p0", "s-p2"):
        error = refusal(image, stream(name))
        assert error is not None
        assert (error.code, "taken by a partition of a stream" in str(error)) == (ErrorCode.STREAM_EXISTS, True)
    for name in ("s-p3", "s-p00", "s-p", "one-p0", "none-p0", "s-p0-p0"):
        assert refusal(image, stream(name)) is None


def test_no_partition_takes_the_name_of_a_stream() -> None:
    image = after(ClusterImage(), RAISED, stream("s-p2"), stream("s", 2))
    error = refusal(image, more(image, "s", 2))
    assert error is not None
    assert (error.code, "partition 2 would be 's-p2'" in str(error)) == (ErrorCode.STREAM_EXISTS, True)
    assert check_growth(image, image.by_name("s"), {"partitions": 2}).partitions == 2
    with pytest.raises(RemoteError, match="that stream has to go first"):
        check_growth(image, image.by_name("s"), {"partitions": 4})
    error = refusal(after(ClusterImage(), RAISED, stream("s-p2")), stream("s", 3))
    assert error is not None
    assert (error.code, error.details["partition"]) == (ErrorCode.STREAM_EXISTS, 2)


def test_the_first_partition_gets_a_name_with_the_second() -> None:
    image = after(ClusterImage(), RAISED, stream("s"), stream("s-p0"))
    error = refusal(image, more(image, "s", 1))
    assert error is not None
    assert error.code == ErrorCode.STREAM_EXISTS


def test_what_has_one_name_from_below_the_level_stays_and_grows() -> None:
    image = after(ClusterImage(), stream("s", 2), stream("s-p1"), stream("t-p1"), stream("t", 2), RAISED)
    assert refusal(image, stream("s-p1")) is None  # it exists
    assert refusal(image, more(image, "s", 2)) is None
    assert refusal(image, stream("s-p0")) is not None


@pytest.mark.parametrize(
    ("name", "found"), [("a-p1-p2", ("a-p1", 2)), ("a-p0", ("a", 0)), ("a-p01", None), ("-p0", None), ("a", None)]
)
def test_names_are_parsed(name: str, found: tuple[str, int] | None) -> None:
    assert parsed_name(name) == found
