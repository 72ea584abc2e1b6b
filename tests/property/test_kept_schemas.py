"""The state of the registry against the plainest model: dictionaries of what the rows said last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.kept import KeptSchemas
from penstock.schemas.rows import (
    StoredText,
    StoredVersion,
    VersionKey,
    encode_text_key,
    encode_value,
    encode_version_key,
)

STREAMS, SUBJECTS = (1, 2, 3), ("a.>", "b/c.*", "d")
TEXTS = {
    text.hash(): text for text in (StoredText("avro", str(number), sharer="xy"[number % 2]) for number in range(4))
}
places = st.builds(VersionKey, st.sampled_from(STREAMS), st.sampled_from(SUBJECTS), st.integers(1, 3))
versions = st.builds(
    StoredVersion,
    kind=st.just("avro"),
    text_hash=st.sampled_from(sorted(TEXTS)),
    hash=st.just("c" * 64),
    registered_us=st.integers(0, 9),
    sharer=st.sampled_from(["", "x", "y"]),
)
rows = st.one_of(
    st.tuples(places, versions | st.none()),
    st.tuples(st.sampled_from(sorted(TEXTS)), st.booleans()),
    st.tuples(st.sampled_from([b"v2/version/1/a/1", b"x", b"v1/text/"]), st.just(b"{}")),
)


def encoded(row: tuple[object, object]) -> tuple[bytes | None, bytes | None, int]:
    match row:
        case VersionKey() as place, StoredVersion() as version:
            return encode_version_key(place), encode_value(version), 0
        case VersionKey() as place, _:
            return encode_version_key(place), None, 0
        case str(text_hash), is_there:
            return encode_text_key(text_hash), encode_value(TEXTS[text_hash]) if is_there else None, 0
        case bytes(key), bytes(value):
            return key, value, 0
    raise AssertionError(row)


def told(kept: KeptSchemas) -> object:
    """All that the state says."""
    return (
        [kept.versions(one) for one in STREAMS],
        [kept.text(one) for one in sorted(TEXTS)],
        [kept.shares.held(one) for one in ("", "x", "y")],
        [kept.text_shares.held(one) for one in ("", "x", "y")],
        len(kept),
        kept.text_shares.used,
    )


@given(st.lists(rows, max_size=40), st.sets(places, max_size=4))
def test_the_state_is_what_the_rows_said_last(log: list[tuple[object, object]], gone: set[VersionKey]) -> None:
    model: dict[VersionKey, StoredVersion] = {}
    texts: set[str] = set()
    kept = KeptSchemas()
    for row in log:
        kept.take([encoded(row)])
        match row:
            case VersionKey() as place, StoredVersion() as version:
                model[place] = version
            case VersionKey() as place, _:
                model.pop(place, None)
            case str(text_hash), is_there:
                (texts.add if is_there else texts.discard)(text_hash)
    for stream in STREAMS:
        wanted = sorted((place, version) for place, version in model.items() if place.stream_id == stream)
        assert kept.versions(stream) == wanted
        for text_hash in TEXTS:
            assert kept.uses_text(stream, text_hash) == any(one.text_hash == text_hash for _, one in wanted)
    assert {one for one in TEXTS if kept.text(one) is not None} == texts
    assert len(kept) == len(model)
    assert kept.text_shares.used == sum(TEXTS[one].size for one in texts)
    for user in ("", "x", "y"):
        assert kept.shares.held(user) == sum(one.sharer == user for one in model.values())

    whole, latest = KeptSchemas(), KeptSchemas()
    whole.take(map(encoded, log))
    latest.take({row[0]: encoded(row) for row in log}.values())  # what compaction may leave
    assert told(whole) == told(latest) == told(kept)

    there = {model[place].text_hash for place in model.keys() - gone}
    kept.take((key, value, 0) for key, value in kept.tombstones(sorted(gone)))
    assert {place for one in STREAMS for place, _ in kept.versions(one)} == model.keys() - gone
    dropped = {model[place].text_hash for place in model.keys() & gone} - there
    assert {one for one in TEXTS if kept.text(one) is not None} == texts - dropped
    rest = kept.left_over(lambda stream: stream == 2, 2)
    assert rest == [place for place in sorted(model.keys() - gone) if place.stream_id == 2][:2]
