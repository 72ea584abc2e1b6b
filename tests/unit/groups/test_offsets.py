"""What the rows of `__offsets` come to, against the plainest model: a dictionary of keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.offsets import CommittedOffsets
from penstock.groups.rows import GroupPosition, OffsetKey, decode_value, encode_key, encode_value

places = st.builds(OffsetKey, st.sampled_from("abc"), st.integers(1, 3), st.integers(0, 2))
rows = st.lists(st.tuples(places, st.none() | st.integers(0, 9)))


def written(place: OffsetKey, offset: int | None, number: int) -> tuple[bytes, bytes | None, int]:
    return encode_key(place), None if offset is None else encode_value(GroupPosition(offset)), number


@given(rows=rows)
def test_the_last_row_of_a_place_counts(rows: list[tuple[OffsetKey, int | None]]) -> None:
    offsets = CommittedOffsets()
    model: dict[OffsetKey, tuple[int, int]] = {}
    for number, (place, offset) in enumerate(rows):
        offsets.take([written(place, offset, number)])
        if offset is None:
            model.pop(place, None)
        else:
            model[place] = offset, number
        assert len(offsets) == len(model)
        pairs = sorted({(place.group, place.stream_id) for place in model})
        assert [one[:2] for one in offsets.page(("", 0), 100)] == pairs
    for place in {place for place, _ in rows}:
        found = offsets.of(place.group, place.stream_id).get(place.partition)
        assert (place in offsets) == (place in model)
        assert (None if found is None else (found.position.offset, found.committed_us)) == model.get(place)
    pairs = sorted({(place.group, place.stream_id) for place in model})
    paged: list[tuple[str, int, int]] = []
    after = ("", 0)
    while page := offsets.page(after, 2):
        paged += page
        after = page[-1][:2]
    assert [one[:2] for one in paged] == pairs
    assert sum(count for *_, count in paged) == len(model)


@given(rows=rows, gone=st.sets(st.integers(1, 3)), count=st.integers(1, 30))
def test_what_is_left_over_is_in_streams_that_are_gone(
    rows: list[tuple[OffsetKey, int | None]], gone: set[int], count: int
) -> None:
    offsets = CommittedOffsets()
    offsets.take(written(place, offset, 0) for place, offset in rows)
    found = offsets.left_over(gone.__contains__, count)
    all_of_them = {place for place, _ in rows if place in offsets and place.stream_id in gone}
    assert len(set(found)) == len(found) == min(count, len(all_of_them))
    assert set(found) <= all_of_them
    offsets.take(written(place, None, 0) for place in found)
    assert not set(offsets.left_over(gone.__contains__, 100)) & set(found)


def test_pages_are_sorted_once_until_there_is_another_group_or_stream() -> None:
    offsets = CommittedOffsets()
    offsets.take(written(OffsetKey(group, 1, 0), 1, 1) for group in "cab")
    offsets.page(("", 0), 1)
    known = offsets._pairs
    offsets.take([written(OffsetKey("a", 1, 1), 1, 1), written(OffsetKey("a", 1, 0), 2, 2)])
    assert offsets.page(("", 0), 2) == [("a", 1, 2), ("b", 1, 1)]
    assert offsets._pairs is known
    offsets.take([written(OffsetKey("d", 1, 0), 1, 1)])
    assert offsets.page(("c", 1), 2) == [("d", 1, 1)]


def test_rows_that_say_nothing_change_nothing() -> None:
    offsets = CommittedOffsets()
    offsets.take([written(OffsetKey("a", 1, 0), 5, 1)])
    unknown: list[tuple[bytes | None, bytes | None, int]] = [
        (None, b'{"offset":1}', 2),
        (b"v2/offset/a/1/0", None, 2),
        (b"v1/offset/a/1/0", b"?", 2),
        (b"v1/offset/a/1/1", b"", 2),
    ]
    offsets.take(unknown)
    assert len(offsets) == 1
    assert offsets.of("a", 1)[0].position == GroupPosition(5)
    assert decode_value(b"?") is None
