"""Schemas in the folder of a backup: what was written is read, and anything else is damage."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.config import StreamConfig
from penstock.base.errors import CorruptionError, OperationalError
from penstock.base.ids import StreamId, TimestampUs
from penstock.ops.backup.files import Manifest, SchemasBackup, StreamBackup, read_manifest, write_manifest, write_whole
from penstock.ops.backup.schemas import TEXT_BYTES_PER_FILE_MAX, delete_unlisted, read_schemas, write_schemas
from penstock.ops.backup.verifying import VerifiedSchemas, verify_backup
from penstock.schemas.as_json import JSON_CHARS_MAX, schemas_to_json
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.registry import SchemaVersion, StreamSchemas, Typed

FORGED = "schemas/forged.json"


def avro(doc: str) -> Schema:
    return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "Order", "doc": doc, "fields": []}))


def version(number: int, doc: str = "", subject: str = "orders.>", *, is_forced: bool = False) -> SchemaVersion:
    schema = avro(doc)
    return SchemaVersion(Typed(subject), number, schema, schema.hash(), TimestampUs(7), "ann", is_forced)


def schemas(*versions: SchemaVersion) -> StreamSchemas:
    return StreamSchemas("orders", StreamId(7), versions)


def entry() -> StreamBackup:
    return StreamBackup("orders", 7, StreamConfig(name="orders", subject="orders.>"))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "schemas").iterdir())


def listed(folder: Path, data: bytes, **other: Any) -> StreamBackup:
    """Write the content of a file of schemas, with its right hash, and list it."""
    write_whole(folder, Path(FORGED), data)
    file = SchemasBackup(FORGED, 1, len(data), hashlib.sha256(data).hexdigest())
    return msgspec.structs.replace(entry(), schemas=[msgspec.structs.replace(file, **other)])


def test_all_that_a_version_has_comes_back(tmp_path: Path) -> None:
    kept, stream = (version(1), version(2, "é", is_forced=True), version(1, subject="x")), entry()
    write_schemas(tmp_path, stream, schemas(*kept))
    write_manifest(tmp_path, Manifest(streams=[stream]))
    (found,) = read_manifest(tmp_path).streams
    assert tuple(read_schemas(tmp_path, found)) == kept
    assert [file.versions for file in found.schemas] == [3]
    (path,) = (tmp_path / "schemas").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert verify_backup(tmp_path).schemas == [VerifiedSchemas("orders", 3, "sound")]


def test_a_manifest_of_before_has_no_schemas(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest(streams=[entry()]))
    manifest = tmp_path / "penstock-backup.json"
    said = json.loads(manifest.read_text())
    del said["streams"][0]["schemas"]
    manifest.write_text(json.dumps(said))
    (found,) = read_manifest(tmp_path).streams
    assert (found.schemas, read_schemas(tmp_path, found), verify_backup(tmp_path).schemas) == ([], [], [])


def test_what_is_forgotten_leaves_the_folder_and_what_stays_is_not_written_again(tmp_path: Path) -> None:
    stream = entry()
    write_schemas(tmp_path, stream, schemas(version(1), version(2, "b")))
    (path,) = (tmp_path / "schemas").iterdir()
    before = path.stat().st_ino
    write_schemas(tmp_path, stream, schemas(version(1), version(2, "b")))
    assert path.stat().st_ino == before
    path.unlink()
    write_schemas(tmp_path, stream, schemas(version(1), version(2, "b")))
    assert files(tmp_path) == [path.name]  # of a folder that lost it
    write_schemas(tmp_path, stream, schemas(version(1)))
    delete_unlisted(tmp_path, Manifest(streams=[stream]))
    assert [f"schemas/{name}" for name in files(tmp_path)] == [file.path for file in stream.schemas]
    assert path.name not in files(tmp_path)
    write_schemas(tmp_path, stream, schemas())
    delete_unlisted(tmp_path, Manifest(streams=[stream]))
    assert (files(tmp_path), stream.schemas) == ([], [])


def test_large_texts_are_in_several_files_and_one_text_is_there_once(tmp_path: Path) -> None:
    large, stream = "x" * 700_000, entry()
    kept = [version(number, f"{number}{large}") for number in range(1, 15)]
    same = [replace(kept[-1], typed=Typed(f"same.{number}"), number=1) for number in range(1, 10)]
    write_schemas(tmp_path, stream, schemas(*kept, *same))
    assert [file.versions for file in stream.schemas] == [11, 12]
    assert max(file.size_bytes for file in stream.schemas) < TEXT_BYTES_PER_FILE_MAX
    assert read_schemas(tmp_path, stream) == [*kept, *same]


@pytest.mark.parametrize("change", ["flipped", "cut", "longer", "gone", "folder"])
def test_a_changed_file_is_damage(tmp_path: Path, change: str) -> None:
    stream = entry()
    write_schemas(tmp_path, stream, schemas(version(1)))
    write_manifest(tmp_path, Manifest(streams=[stream]))
    (path,) = (tmp_path / "schemas").iterdir()
    data = path.read_bytes()
    path.unlink()
    if change == "folder":
        path.mkdir()
    elif change != "gone":
        changed = {"flipped": data.replace(b"Order", b"order"), "cut": data[:-1], "longer": data + b" "}[change]
        assert changed != data
        path.write_bytes(changed)
    with pytest.raises(CorruptionError, match=path.name):
        read_schemas(tmp_path, stream)
    (bad,) = verify_backup(tmp_path).damaged
    assert isinstance(bad, VerifiedSchemas)
    assert (bad.stream, bad.versions, bad.verdict, bad.file) == ("orders", 1, "damaged", str(path))


def test_a_forged_file_is_damage(tmp_path: Path) -> None:
    good = schemas_to_json([schemas(version(1))])
    other_text = good.replace("Order", "Other").encode()  # the hash of the version is that of another schema
    for data, other in (
        (b"[]", {}),
        (b"\xff", {}),
        (other_text, {}),
        (good.replace("orders.>", "\\ud800").encode(), {}),
        (good.encode(), {"versions": 2}),
        (good.encode(), {"size_bytes": JSON_CHARS_MAX + 1}),
    ):
        with pytest.raises(CorruptionError, match=FORGED):
            read_schemas(tmp_path, listed(tmp_path, data, **other))
    assert len(read_schemas(tmp_path, listed(tmp_path, good.encode()))) == 1


def test_a_path_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    stream = msgspec.structs.replace(entry(), schemas=[SchemasBackup("../secret", 1, 1, "0" * 64)])
    write_manifest(tmp_path / "backup", Manifest(streams=[stream]))
    with pytest.raises(OperationalError, match=r"not in its folder: '\.\./secret'"):
        read_manifest(tmp_path / "backup")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_change_of_the_json_is_damage_or_other_schemas(data: st.DataObject) -> None:
    good = schemas_to_json([schemas(version(1), version(2, "b", is_forced=True))]).encode()
    at = data.draw(st.integers(0, len(good) - 1))
    changed = good[:at] + data.draw(st.binary(max_size=4)) + good[at + data.draw(st.integers(0, 6)) :]
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = read_schemas(Path(folder), listed(Path(folder), changed, versions=2))
        except CorruptionError:
            return
        assert [one.hash for one in found] == [one.schema.hash() for one in found]
