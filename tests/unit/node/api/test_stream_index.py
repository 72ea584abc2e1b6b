"""The directory finds what a search through all streams would find."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.config import Acks, StreamConfig, stream_config_mistakes
from penstock.base.errors import ErrorCode
from penstock.base.subjects import matches
from penstock.messages import (
    FindStreamsRequest,
    FindStreamsResponse,
    MetadataRequest,
    MetadataResponse,
    StatusRequest,
    StatusResponse,
)
from penstock.metadata.commands import AlterStream, Command, CreateStream, DeleteStream
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage, StreamState
from penstock.node.api.stream_index import StreamIndex
from tests.unit.node.harness import Broker

TOKENS = st.sampled_from(["a", "b", "*", "$JS", "_INBOX"])
PATTERNS = st.tuples(st.lists(TOKENS, min_size=1, max_size=4), st.booleans()).map(
    lambda drawn: ".".join([*drawn[0], ">"] if drawn[1] else drawn[0])
) | st.just(">")
SUBJECTS = st.lists(
    st.sampled_from(["a", "b", "c", "$JS", "_INBOX", "0", "1", "2", "3", "01"]), min_size=1, max_size=5
).map(".".join)


def image_of(
    patterns: list[str], image: ClusterImage | None = None, partitions: int = 1, by: str = "publisher"
) -> ClusterImage:
    """Streams on these subjects; with so many partitions, where there can be several."""
    image = ClusterImage() if image is None else image
    for pattern in patterns:
        config = StreamConfig(
            name=f"s{image.index}", subject=pattern, acks=Acks.NEVER, partitions=partitions, partition_by=by
        )
        if stream_config_mistakes(config):
            config = StreamConfig(name=f"s{image.index}", subject=pattern, acks=Acks.NEVER)
        command = CreateStream(config=config, created_us=1)
        image, _ = apply(image, image.index + 1, command)
    return image


def stores(state: StreamState, subject: str) -> bool:
    listens = (state.config.subject_of(number) for number in range(len(state.partitions)))
    return any(matches(one, subject) for one in listens)


@given(
    st.lists(PATTERNS, max_size=8),
    st.integers(1, 3),
    st.lists(SUBJECTS, max_size=5),
    st.sampled_from(["publisher", "mapped", "group", "key"]),
)
def test_covering_finds_every_stream_that_matches(
    patterns: list[str], partitions: int, subjects: list[str], by: str
) -> None:
    image = image_of(patterns, partitions=partitions, by=by)
    directory = StreamIndex()
    for subject in subjects:
        wanted = sorted(state.name for state in image.streams.values() if stores(state, subject))
        assert [state.name for state in directory.covering(image, subject)] == wanted


@given(st.integers(0, 7), st.integers(1, 4))
def test_pages_are_all_names_in_order(count: int, size: int) -> None:
    image = image_of(["a"] * count)
    directory = StreamIndex()
    found, after = directory.page(image, None, size)
    while after is not None:
        assert after == found[-1]
        page, after = directory.page(image, after, size)
        assert 0 < len(page) <= size
        found += page
    assert found == sorted(image.names)


def test_pages_are_cut_by_partitions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_PARTITIONS_MAX", 7)
    image = image_of(["a", "b", "c"], partitions=3)
    directory = StreamIndex()
    assert directory.page(image, None, 9) == (["s0", "s1"], "s1")
    assert directory.page(image, "s1", 9) == (["s2"], None)
    monkeypatch.setattr(limits, "METADATA_PARTITIONS_MAX", 2)
    assert directory.page(image, "s0", 9) == (["s1"], "s1"), "a large one comes alone"


def test_names_with_too_many_partitions_are_asked_for_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_PARTITIONS_MAX", 3)
    broker = Broker().start()
    broker.create("orders", "orders", partitions=4)
    broker.create("users")
    assert broker.refusal(MetadataRequest(names=("orders", "users"))).code == ErrorCode.TOO_LARGE
    assert len(broker.stream("orders").partitions) == 4


def test_covering_is_by_name_and_leaves_reserved_subjects_out() -> None:
    image = image_of(["orders.*", ">", "orders.eu"])
    assert [state.name for state in StreamIndex().covering(image, "orders.eu")] == ["s0", "s1", "s2"]
    assert StreamIndex().covering(image, "_INBOX.x") == []


def test_what_came_and_went_is_seen() -> None:
    directory = StreamIndex()
    image = image_of(["a"])
    assert [state.name for state in directory.covering(image, "a")] == ["s0"]
    image = image_of(["*"], image)
    assert [state.name for state in directory.covering(image, "a")] == ["s0", "s1"]
    gone: Command = DeleteStream(stream_id=1)
    image, _ = apply(image, image.index + 1, gone)
    assert [state.name for state in directory.covering(image, "a")] == ["s1"]
    assert directory.page(image, None, 9) == (["s1"], None)


def test_a_stream_is_found_by_each_of_its_subjects_as_they_are_now() -> None:
    directory = StreamIndex()
    config = StreamConfig(name="s", subject="a", more_subjects=("b.*", "c.>"), acks=Acks.NEVER)
    image, _ = apply(ClusterImage(), 1, CreateStream(config=config, created_us=1))

    def found(*subjects: str) -> list[bool]:
        return [bool(directory.covering(image, subject)) for subject in subjects]

    assert found("a", "b.x", "c.x.y", "b", "d") == [True, True, True, False, False]
    image, _ = apply(image, 2, AlterStream(stream_id=1, changes={}, add_subjects=("d",), remove_subjects=("a", "c.>")))
    assert found("a", "b.x", "c.x.y", "b", "d") == [False, True, False, False, True]


def test_a_name_asked_for_often_is_answered_once() -> None:
    broker = Broker().start()
    broker.create("orders")
    broker.create("users")
    names = ("orders", "nope", "users") * 300 + ("orders",)
    answer = broker.ask(MetadataRequest(names=names), MetadataResponse)
    assert [info.name for info in answer.streams] == ["orders", "users"]


def test_a_deleted_stream_is_found_no_more() -> None:
    broker = Broker().start()
    broker.create("orders")
    request = FindStreamsRequest(subject="orders.a")
    assert [info.name for info in broker.ask(request, FindStreamsResponse).streams] == ["orders"]
    broker.delete("orders")
    assert broker.ask(request, FindStreamsResponse).streams == ()


def test_status_counts_states_as_the_streams_tell_them() -> None:
    broker = Broker().start()
    broker.create("orders")
    broker.create("users")
    broker.nats.forbid("users.>")
    broker.create("more")
    broker.create("trades", "trades", partitions=3)
    counted = Counter(one.state for info in broker.streams().values() for one in info.partitions)
    assert broker.ask(StatusRequest(), StatusResponse).partitions_by_state == counted == {"online": 5, "starting": 1}
