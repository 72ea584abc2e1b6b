"""An image survives its bytes, equal ones have equal bytes, and no bytes make one that breaks the rules."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata.commands import DeleteStream, FormCluster, RaiseFeatureLevel
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage
from penstock.metadata.persistence.snapshot import SNAPSHOT_VERSION, decode_image, encode_image, image_digest
from penstock.metadata.persistent_map import PersistentMap
from tests.unit.metadata.stories import Story


def cluster() -> ClusterImage:
    story = Story()
    story.apply(FormCluster(cluster_id="c1"))
    for line in (
        "cluster 3",
        "create orders replicas=1,2,3;2,3,1 min_isr=2",
        "create trades replicas=3,1",
        "isr orders 1",
        "fence 3",
        "register 3 clean disk=other",
        "stop 2",
    ):
        story.tell(line)
    return story.image


IMAGE = cluster()
FIELDS = msgspec.msgpack.decode(encode_image(IMAGE))


def test_round_trip() -> None:
    assert decode_image(encode_image(IMAGE)) == IMAGE
    assert decode_image(encode_image(ClusterImage())) == ClusterImage()


def test_another_way_to_the_same_image_gives_the_same_bytes() -> None:
    streams = dict(reversed(list(IMAGE.streams.items())))
    brokers = dict(reversed(list(IMAGE.brokers.items())))
    other = replace(IMAGE, streams=PersistentMap(streams), brokers=PersistentMap(brokers))
    assert encode_image(other) == encode_image(IMAGE)
    assert image_digest(other) == image_digest(IMAGE)
    less, _ = apply(IMAGE, IMAGE.index + 1, DeleteStream(stream_id=5))
    assert image_digest(less) != image_digest(IMAGE)


def test_what_a_later_version_made_is_told_apart() -> None:
    with pytest.raises(RemoteError) as caught:
        decode_image(msgspec.msgpack.encode([SNAPSHOT_VERSION + 1, {"anything": "else"}]))
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def raised() -> ClusterImage:
    image, _ = apply(IMAGE, IMAGE.index + 1, RaiseFeatureLevel(feature_level=(0, 4)))
    return image


def test_a_level_above_the_first_is_written_in_a_version_that_earlier_brokers_refuse() -> None:
    assert FIELDS[0] == 1
    assert msgspec.msgpack.decode(encode_image(raised()))[0] == 4
    assert decode_image(encode_image(raised())) == raised()
    assert image_digest(raised()) != image_digest(replace(raised(), feature_level=(0, 3)))


def test_a_level_of_a_later_version_is_told_apart_whatever_else_is_there() -> None:
    fields = msgspec.msgpack.decode(encode_image(raised()))
    data = msgspec.msgpack.encode([4, 7, "c", "brokers of a later kind", {}, None, 0, b"", [0, 5], "more"])
    with pytest.raises(RemoteError, match=r"at feature level 0\.5; this Penstock knows up to 0\.4: upgrade") as caught:
        decode_image(data)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
    decode_image(msgspec.msgpack.encode([*fields, [], "a later field"]))


@pytest.mark.parametrize("version_and_level", [(4, [0, 3]), (4, [0, 2]), (4, "0.4"), (1, [0, 4]), (3, [0, 4])])
def test_a_level_and_a_version_that_do_not_go_together(version_and_level: tuple[int, Any]) -> None:
    fields = msgspec.msgpack.decode(encode_image(raised()))
    version, level = version_and_level
    with pytest.raises(RemoteError) as caught:
        decode_image(msgspec.msgpack.encode([version, *fields[1:8], level]))
    assert caught.value.code == ErrorCode.BAD_FRAME


def test_no_older_broker_at_a_level() -> None:
    fields = msgspec.msgpack.decode(encode_image(raised()))
    fields[3][1][7] = "0.3.0"
    with pytest.raises(RemoteError, match=r"broker 2 of version 0\.3\.0"):
        decode_image(msgspec.msgpack.encode(fields))


def changed(path: tuple[int, ...], value: Any) -> bytes:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(FIELDS))
    place = fields
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((0,), 0),
        ((1,), -1),
        ((1,), 2**64 - 1),
        ((1,), 5),  # what the index says was not made yet
        ((3, 0, 0), 0),
        ((3, 1, 0), 1),
        ((3, 0, 4), 0),
        ((4, 0, 0), 0),
        ((4, 1, 0), 5),
        ((4, 1, 1, "name"), "orders"),
        ((4, 0, 1, "partitions"), 3),
        ((4, 0, 1, "replicas"), None),
        ((4, 0, 1, "min_isr"), None),
        ((4, 0, 1, "unheard_of"), 1),
        ((4, 0, 3, 0, 0), []),
        ((4, 0, 3, 0, 0), [1, 1, 2]),
        ((4, 0, 3, 0, 0), [1, 2, 0]),
        ((4, 0, 3, 0, 1), []),
        ((4, 0, 3, 0, 1), [4]),
        ((4, 0, 3, 1, 1), [1, 1]),
        ((4, 0, 3, 0, 2), [1]),
        ((4, 0, 3, 0, 2), [7]),
        ((4, 0, 3, 0, 3), 3),
        ((4, 0, 3, 0, 4), 0),
        ((4, 0, 3, 0, 4), 2**32),
        ((4, 0, 3, 0, 5), 0),
        ((4, 0, 3, 0, 6), 5),
        ((4, 0, 4), [[0, 0, 1]]),
        ((4, 0, 4), [[0, 2**64 - 1, 1]]),
        ((4, 0, 4), [[0, 5, 0]]),
        ((4, 0, 4), [[0, 5, 2**32]]),
        ((4, 0, 4), [[1000, 5, 1]]),
        ((4, 0, 4), [[-1, 5, 1]]),
        ((4, 0, 4), [[0, 5, 1], [0, 6, 1]]),
        ((4, 0, 5), "ajar"),
        ((4, 0, 6), -1),
    ],
)
def test_what_cannot_be_is_refused(path: tuple[int, ...], value: Any) -> None:
    with pytest.raises(RemoteError) as caught:
        decode_image(changed(path, value))
    assert caught.value.code == ErrorCode.BAD_FRAME


@given(st.binary(max_size=300))
def test_hostile_bytes(data: bytes) -> None:
    with contextlib.suppress(RemoteError):
        decode_image(data)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(encode_image(IMAGE))
    for position, value in changes:
        data[position % len(data)] = value
    with contextlib.suppress(RemoteError):
        image = decode_image(bytes(data))
        assert decode_image(encode_image(image)) == image
