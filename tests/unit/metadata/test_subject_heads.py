"""Streams with overlapping subjects are found by the subjects' heads: all of them, and in a few look-ups."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.config import RetentionPolicy, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import StreamId
from penstock.base.subjects import overlap
from penstock.metadata.commands import AlterStream, Command, CreateStream, DeleteStream
from penstock.metadata.effects.apply import apply
from penstock.metadata.feature_versions import CONFIG_FIELDS
from penstock.metadata.image import ClusterImage
from penstock.metadata.overlaps import check_no_overlap, overlapping
from penstock.metadata.persistence.snapshot import decode_image, encode_image
from penstock.metadata.subject_heads import SubjectHeads
from tests.work import lines_run

TOKENS = st.sampled_from(["a", "b", "*"])
SUBJECTS = st.builds(
    lambda tokens, tail: ".".join([*tokens, *tail]) or "a",
    st.lists(TOKENS, max_size=3),
    st.sampled_from([[], [], [">"], ["c"]]),
)
CONFIGS = st.builds(
    lambda subjects, split: StreamConfig(
        name="", subject=subjects[0], more_subjects=tuple(subjects[1:]), partition_by=split
    ),
    st.lists(SUBJECTS, min_size=1, max_size=3, unique=True),
    st.sampled_from(["publisher", "publisher", "mapped"]),
)


def applied(image: ClusterImage, command: Command) -> ClusterImage:
    return apply(image, image.index + 1, command)[0]


def created(image: ClusterImage, name: str, config: StreamConfig) -> ClusterImage:
    named = StreamConfig(
        name=name,
        subject=config.subject,
        more_subjects=config.more_subjects,
        partition_by=config.partition_by,
    )
    return applied(image, CreateStream(config=named, created_us=1, refuse_overlap=False))


@given(st.lists(CONFIGS, max_size=6), CONFIGS)
def test_all_overlapping_streams_are_found(configs: list[StreamConfig], wanted: StreamConfig) -> None:
    image = ClusterImage()
    for number, config in enumerate(configs):
        image = created(image, f"s{number}", config)
    expected = [
        f"s{number}"
        for number, config in enumerate(configs)
        if any(overlap(one, other) for one in config.listening_patterns for other in wanted.listening_patterns)
    ]
    assert [state.name for state in overlapping(image, wanted)] == expected


def test_the_heads_follow_alterations_and_deletions_and_are_read_from_a_snapshot() -> None:
    image = ClusterImage()
    for number, subject in enumerate(("a.b.c", "a.b.d", "a.c.>", "e")):
        image = created(image, f"s{number}", StreamConfig(name="", subject=subject))
    altered = AlterStream(
        stream_id=image.names["s3"], changes={}, add_subjects=("a.b.x", "f.*"), remove_subjects=("e",)
    )
    image = applied(image, altered)
    image = applied(image, DeleteStream(stream_id=image.names["s0"]))
    assert image.heads == ({"a.b": (StreamId(2), StreamId(4)), "a.c": (StreamId(3),), "f": (StreamId(4),)}, {"a": 2})
    assert image.heads == SubjectHeads.of((one, state.config) for one, state in image.streams.items())
    assert decode_image(encode_image(image)) == image
    with pytest.raises(RemoteError) as refused:
        check_no_overlap(image, StreamConfig(name="new", subject="f.y"))
    assert refused.value.code == ErrorCode.SUBJECTS_OVERLAP
    check_no_overlap(image, StreamConfig(name="new", subject="e"))


def test_streams_that_name_groups_are_known_and_are_read_from_a_snapshot() -> None:
    image = ClusterImage(feature_level=CONFIG_FIELDS["interest_of"])
    for number, names in enumerate(((), ("group:a",), ("archive:b",))):
        retention = RetentionPolicy.INTEREST
        config = StreamConfig(name=f"s{number}", subject="a", retention=retention, interest_of=names)
        image = applied(image, CreateStream(config=config, created_us=1))
    one, two, three = (image.names[f"s{number}"] for number in range(3))
    assert image.naming == {two, three}
    image = applied(image, AlterStream(stream_id=one, changes={"interest_of": ["group:c"]}))
    image = applied(image, AlterStream(stream_id=two, changes={"interest_of": []}))
    assert image.naming == {one, three}
    image = applied(image, DeleteStream(stream_id=three))
    assert image.naming == {one}
    assert decode_image(encode_image(image)) == image


def test_a_stream_of_one_partition_stores_its_own_subjects_only() -> None:
    """JetStream allows streams on `a` and on `a.b`; the partitions of one that has several have such subjects."""
    image = created(ClusterImage(), "s", StreamConfig(name="", subject="a"))
    for subject in ("a.b", "a.*", "a.>", "*.b"):
        check_no_overlap(image, StreamConfig(name="new", subject=subject))
    below = created(ClusterImage(), "s", StreamConfig(name="", subject="a.b"))
    check_no_overlap(below, StreamConfig(name="new", subject="a"))
    two = StreamConfig(name="s", subject="a", partitions=2)
    image = applied(ClusterImage(), CreateStream(config=two, created_us=1))
    for subject in ("a", "a.1", "a.>"):
        with pytest.raises(RemoteError):
            check_no_overlap(image, StreamConfig(name="new", subject=subject))


def test_a_removed_subject_leaves_the_heads_though_its_messages_may_still_be_held() -> None:
    """The last subject that is removed becomes the first former one, so that those held stay the same."""
    image = created(ClusterImage(), "s", StreamConfig(name="", subject="a.>", more_subjects=("b.>",)))
    stream_id = image.names["s"]
    removed = applied(image, AlterStream(stream_id=stream_id, changes={}, remove_subjects=("b.>",)))
    state = removed.streams[stream_id]
    assert state.config.held_subjects == image.streams[stream_id].config.held_subjects
    assert removed.names is not image.names
    wanted = StreamConfig(name="new", subject="b.x")
    check_no_overlap(removed, wanted)
    check_no_overlap(applied(removed, DeleteStream(stream_id=stream_id)), wanted)
    for before in (removed, decode_image(encode_image(removed))):
        again = applied(before, AlterStream(stream_id=stream_id, changes={}, add_subjects=("b.>",)))
        with pytest.raises(RemoteError):
            check_no_overlap(again, wanted)


@given(st.lists(st.tuples(st.sampled_from(["a.>", "b.>", "b.c", "d"]), st.booleans()), max_size=8))
def test_the_heads_follow_any_additions_and_removals(changes: list[tuple[str, bool]]) -> None:
    image = created(ClusterImage(), "s", StreamConfig(name="", subject="e.>"))
    for subject, is_added in changes:
        altered = AlterStream(
            stream_id=image.names["s"],
            changes={},
            add_subjects=(subject,) if is_added else (),
            remove_subjects=() if is_added else (subject,),
        )
        with suppress(RemoteError):  # it overlaps another one, or there is none
            image = applied(image, altered)
        assert image.heads == SubjectHeads.of((one, state.config) for one, state in image.streams.items())
    assert applied(image, DeleteStream(stream_id=image.names["s"])).heads == SubjectHeads()


@pytest.mark.parametrize("pattern", ["$KV.b{}.>", "s{}", "orders.{}.*.x"])
def test_the_cost_of_a_look_up_does_not_grow_with_the_streams(pattern: str) -> None:
    def cost(streams: int) -> int:
        image = ClusterImage()
        for number in range(streams):
            image = created(image, f"s{number}", StreamConfig(name="", subject=pattern.format(number)))
        new = StreamConfig(name="new", subject=pattern.format("new"))
        return lines_run(lambda: check_no_overlap(image, new))

    assert cost(300) == cost(3)
