"""All at once, a journal adds up to what its commands come to one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.config import StreamConfig
from penstock.metadata.commands import AlterStream, Command, CreateStream, DeleteStream, StartBroker
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.metadata.persistence.fold import fold

NAMES = st.sampled_from(["orders", "trades", "logs"])
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(StartBroker, started_us=st.integers(1, 99)),
    st.builds(lambda name, partitions: CreateStream(
        config=StreamConfig(name=name, subject="x", partitions=partitions), created_us=1), NAMES, st.integers(1, 3)),
    st.builds(lambda number, most: AlterStream(stream_id=number, changes={"max_messages": most}), st.integers(1, 30),
              st.integers(1, 9)),
    st.builds(DeleteStream, stream_id=st.integers(1, 30)),
)  # fmt: skip


@given(st.lists(COMMANDS, max_size=40))
def test_as_one_by_one(commands: list[Command]) -> None:
    image = ClusterImage()
    deleted = []
    starts = [0]
    for index, command in enumerate(commands, 1):
        image, outcome = apply(image, index, command)
        if isinstance(outcome, CommandOutcome) and outcome.deleted and outcome.stream is not None:
            deleted.append(outcome.stream.stream_id)
        if isinstance(command, StartBroker):
            starts.append(command.started_us)
    found = fold(enumerate(commands, 1))
    assert found.image.index == image.index
    assert list(found.image.streams.items()) == list(image.streams.items())
    assert dict(found.image.names) == dict(image.names)
    assert [state.stream_id for state in found.deleted] == deleted
    assert found.last_start_us == starts[-1]


def test_many_starts_cost_no_more_than_one() -> None:
    commands: list[Command] = [
        CreateStream(config=StreamConfig(name=f"s{number}", subject="x"), created_us=1) for number in range(1_000)
    ]
    commands += [StartBroker(started_us=number) for number in range(20_000)]
    image = fold(enumerate(commands, 1)).image
    (partitions,) = {state.partitions for state in image.streams.values()}
    assert [one.leader_epoch for one in partitions] == [20_001]
    assert len({id(state.partitions) for state in image.streams.values()}) == 1, "they share what is equal"
