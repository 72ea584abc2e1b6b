"""What the log itself says of groups, of producers and of what was published: its rows and headers, read back."""

from __future__ import annotations

from random import Random

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.base.staged import is_once, once_id, staged_for, staged_name, staged_subject
from penstock.batch import codec
from penstock.batch.codec import BatchProducer, producer_of
from penstock.batch.header import ENDS_RUN, OF_RUN, BatchHeader
from penstock.groups import rows
from penstock.groups.membership import Generation
from penstock.groups.offsets import CommittedOffsets
from penstock.groups.rows import GroupPosition
from penstock.ingest import producers, published
from penstock.schemas import rows as schema_rows
from penstock.schemas.kept import KeptSchemas
from penstock.schemas.rows import StoredText, StoredVersion, VersionKey
from tests.batch_samples import SMALL, message_of, with_header
from tests.fuzz.parts import joined, parted
from tests.fuzz.shapes import DEEP_JSON, made_json, maker_of
from tests.fuzz.target import Cover, Modules, Target

_position = maker_of(GroupPosition)
_generation = maker_of(Generation)
_text = maker_of(StoredText)
_version = maker_of(StoredVersion)
_VERSION = b'{"kind":"avro","text_hash":"%b","hash":"' + b"c" * 64 + b'","registered_us":5}'
_GROUPS = (b"g", b"group.1", b"x" * 128, b"x" * 129, "é".encode(), b"a/b", b"")
_NUMBERS = (b"0", b"1", b"7", b"01", b"9" * 19, b"9" * 20, b"-1", b"")


def offsets_rows(modules: Modules, data: bytes) -> object:
    """Rows of `__offsets`: what they say, or nothing; what is there can be listed, and no row says another's."""
    parts = parted(data)
    offsets = CommittedOffsets()
    known = 0
    for key, value in zip(parts[::2], parts[1::2], strict=False):
        place, group = rows.decode_key(key), rows.decode_generation_key(key)
        assert place is None or group is None
        if place is not None:
            assert rows.encode_key(place) == key
            assert rows.group_mistake(place.group) is None
        if group is not None:
            assert rows.encode_generation_key(group) == key
        if (position := rows.decode_value(value)) is not None:
            assert rows.decode_value(rows.encode_value(position)) == position
        if (generation := rows.decode_generation(value)) is not None:
            assert rows.decode_generation(rows.encode_generation(generation)) == generation
        known += place is not None and position is not None
        rows.group_mistake(key.decode("utf-8", "replace"))
        offsets.take([(key, None if value == b"null" else value, 5)])
    assert len(offsets) <= known
    assert sum(count for _, _, count in offsets.page(("", 0), 100)) == len(offsets)
    assert len(offsets.left_over(lambda _: True, 5)) == min(5, len(offsets))
    offsets.take([(None, None, 6), *((key, None, 6) for key in parts[::2])])
    assert len(offsets) == 0
    return f"{min(known, 5)} {min(len(offsets.generations), 3)}"


def made_offsets_rows(chance: Random) -> bytes:
    """Keys and values, each sound or nearly."""
    pick = chance.choice
    parts: list[bytes] = []
    for _ in range(1 + int(chance.random() * 6)):
        if chance.random() < 0.6:
            numbers = (b"7", b"0") if chance.random() < 0.7 else (pick(_NUMBERS), pick(_NUMBERS))
            key = b"v1/offset/%b/%b/%b" % (pick(_GROUPS[:3]) if chance.random() < 0.8 else pick(_GROUPS), *numbers)
            value = made_json(chance, _position)
        else:
            key = b"v1/group/" + pick(_GROUPS)
            value = made_json(chance, _generation)
        kind = chance.random()
        if kind < 0.1:
            value = b"null"
        elif kind < 0.12:
            value = b'{"offset":1,"x":' + DEEP_JSON + b"}"
        elif kind < 0.13:
            value = DEEP_JSON
        parts += (key, value)
    return joined(parts)


def schemas_rows(modules: Modules, data: bytes) -> object:
    """Rows of `__schemas`: what they say, or nothing; tombstones for all that is there leave nothing."""
    parts = parted(data)
    kept = KeptSchemas()
    known = 0
    places: list[VersionKey] = []
    for key, value in zip(parts[::2], parts[1::2], strict=False):
        text_hash, place = schema_rows.decode_text_key(key), schema_rows.decode_version_key(key)
        assert text_hash is None or place is None
        if text_hash is not None:
            assert schema_rows.encode_text_key(text_hash) == key
        if place is not None:
            assert schema_rows.encode_version_key(place) == key
            places.append(place)
        if (text := schema_rows.decode_text(value)) is not None:
            assert schema_rows.decode_text(schema_rows.encode_value(text)) == text
            assert (len(text.hash()), text.size >= 0) == (64, True)
        if (version := schema_rows.decode_version(value)) is not None:
            assert schema_rows.decode_version(schema_rows.encode_value(version)) == version
        known += place is not None and version is not None
        kept.take([(key, None if value == b"null" else value, 5)])
    assert len(kept) <= known
    there = [place for one in {place.stream_id for place in places} for place, _ in kept.versions(one)]
    assert len(there) == len(kept)
    for place in there:
        kept.uses_text(place.stream_id, "0" * 64)
    assert len(kept.left_over(lambda _: True, 5)) == min(5, len(kept))
    kept.take((key, value, 6) for key, value in kept.tombstones(there))
    assert len(kept) == 0
    return f"{min(known, 5)} {min(len(there), 5)}"


def made_schemas_rows(chance: Random) -> bytes:
    """Keys and values, each sound or nearly."""
    pick = chance.choice
    parts: list[bytes] = []
    for _ in range(1 + int(chance.random() * 6)):
        text_hash = pick((b"0", b"a")) * 64
        if chance.random() < 0.6:
            number = b"1" if chance.random() < 0.7 else pick(_NUMBERS)
            key = b"v1/version/%b/%b/%b" % (pick((b"7", b"7", b"0")), pick((b"a.>", b"b/c", b"\xff")), number)
            value = made_json(chance, _version) if chance.random() < 0.3 else _VERSION % text_hash
        else:
            key = b"v1/text/" + text_hash
            value = made_json(chance, _text)
        kind = chance.random()
        if kind < 0.1:
            value = b"null"
        elif kind < 0.13:
            value = DEEP_JSON
        parts += (key, value)
    return joined(parts)


def _headers_in(data: bytes) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    for part in parted(data):
        try:
            found.append(codec.read_header(part))
        except CorruptionError:
            continue
    return found


_PREFIX = bytes(message_of(SMALL))[: codec.PREFIX_BYTES]
_NOW_US = 10**15


def runs(modules: Modules, data: bytes) -> object:
    """Headers of batches, the last one first, as a new leader reads who published and appended what."""
    headers = _headers_in(data)
    runs_found, producers_found = published.RunCollector(0), producers.ProducerCollector(0)
    for header in headers:
        if runs_found.wants(header):
            runs_found.add(header)
        if producers_found.wants(header):
            producers_found.add(header)
    known_runs, known_producers = published.PublishedRuns(), producers.Producers()
    known_runs.known(runs_found)
    known_producers.known(producers_found)
    out = [f"{known_runs.count} {known_producers.count}"]
    for header in headers:
        for number in (header.producer_epoch, header.producer_epoch + 1, 0):
            piece = published.RunPiece(header.run_id, header.producer_sequence, number, header.run_plan)
            try:
                out.append("-" if known_runs.find(piece, _NOW_US) is None else "there")
            except RemoteError as error:
                out.append(error.code)
        asked = producer_of(header)._replace(run_id=bytes(16), run_plan=0)
        if asked.producer_id:
            out.append(_found(known_producers, asked, header.count))
        known_runs.appended(header)
        if header.producer_id:
            known_producers.appended(header)
    pages = known_runs.page(b"", 1_000, _NOW_US)
    assert [query for query, _ in pages] == sorted(query for query, _ in pages)
    assert len(known_producers.page(0, 1_000, _NOW_US)) <= limits.PRODUCERS_MAX
    for header in headers[:3]:
        stream_id = header.base_offset % 2**63 or 1
        assert staged_for(staged_name(stream_id), staged_subject(stream_id)) == stream_id
        assert is_once(once_id(header.run_id))
    staged_for(data[:40].decode("latin-1"), data[:40].decode("latin-1"))
    return " ".join(out[:12])


def _found(known: producers.Producers, asked: BatchProducer, count: int) -> str:
    try:
        return "new" if known.find(asked, count, _NOW_US) is None else "again"
    except RemoteError as error:
        return str(error.code)


def made_runs(chance: Random) -> bytes:
    """Headers of producers that go on, and of runs of some pieces; here and there one that does not belong."""
    pick = chance.choice
    parts: list[bytes] = []
    for base in range(1 + int(chance.random() * 8)):
        is_run = chance.random() < 0.5
        fields = {
            "base_offset": base,
            "end_offset": base + 1,
            "producer_id": 0 if is_run else pick((0, 1, 2, 2**63 - 1, 2**64 - 1)),
            "producer_epoch": pick((0, 0, 1, 2, 2**32 - 1)),
            "producer_sequence": pick((0, 1, 2, 3, 2**63 - 1, 2**64 - 1)),
            "run_id": pick((b"q" * 16, once_id(b"o" * 16), b"\xff" * 16)) if is_run else bytes(16),
            "run_plan": pick((0, 0, 1, 2**64 - 1)) if is_run else 0,
            "flags": pick((OF_RUN, OF_RUN, OF_RUN | ENDS_RUN)) if is_run else 0,
            "min_timestamp_us": pick((0, 5, -(2**63))),
            "max_timestamp_us": pick((_NOW_US, _NOW_US, 5, 2**63 - 1, -(2**63))),
        }
        parts.append(bytes(with_header(message_of(SMALL), **fields))[: codec.PREFIX_BYTES])
    return joined(parts)


TARGETS: tuple[Target, ...] = (
    Target(
        "offsets_rows",
        offsets_rows,
        made_offsets_rows,
        (
            Cover("penstock.groups.rows"),
            Cover("penstock.groups.offsets", ("CommittedOffsets",), {"CommittedOffsets.__contains__": "one"}),
        ),
        pieces=(b"v1/offset/", b"v1/group/", b"/", b"{", b"}", b'"offset":', b"null", b"\\ud800", b"[["),
        memory_bytes=4 * 1024 * 1024,
    ),
    Target(
        "schemas_rows",
        schemas_rows,
        made_schemas_rows,
        (
            Cover("penstock.schemas.rows"),
            Cover("penstock.schemas.kept", ("KeptSchemas",)),
        ),
        pieces=(b"v1/text/", b"v1/version/", b"/", b"{", b"}", b'"text_hash":', b"null", b"\\ud800", b"[["),
        memory_bytes=4 * 1024 * 1024,
    ),
    Target(
        "runs",
        runs,
        made_runs,
        (
            Cover(
                "penstock.ingest.published",
                ("PublishedRuns", "RunCollector", "_published", "_refused"),
                {"PublishedRuns.is_reading": "a property of whoever reads"},
            ),
            Cover(
                "penstock.ingest.producers",
                ("Producers", "ProducerCollector", "_place_of", "_refused"),
                {"Producers.is_reading": "a property of whoever reads"},
            ),
            Cover("penstock.base.staged"),
        ),
        pieces=(b"0", b"f", b"ffffffffffffffff"),
    ),
)
