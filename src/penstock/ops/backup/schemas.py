"""Schemas of streams in a backup: files of JSON, each with some versions of one stream and their texts once.

Rules: a file has the SHA-256 of its content as its name, so it does not change, and a run without new versions writes
none. A file holds at most TEXT_BYTES_PER_FILE_MAX of texts, and at least one version. Files that the manifest does not
list any more are deleted, so that forgotten schemas are not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.errors import CorruptionError
from penstock.ops.backup.files import Manifest, SchemasBackup, StreamBackup, read_whole, write_whole

if TYPE_CHECKING:
    from penstock.schemas.kinds import Schema
    from penstock.schemas.registry import SchemaVersion, StreamSchemas

FOLDER = Path("schemas")
TEXT_BYTES_PER_FILE_MAX = 8 << 20
"""As JSON in ASCII they are six times as large at most: below what `schemas_of_json` takes."""


def write_schemas(folder: Path, entry: StreamBackup, schemas: StreamSchemas) -> None:
    """Write a stream's schemas, durably, and list the files in its entry; the caller writes the manifest."""
    from penstock.schemas.as_json import schemas_to_json
    from penstock.schemas.registry import StreamSchemas

    listed = []
    for part in _parts(schemas.versions):
        data = schemas_to_json([StreamSchemas(schemas.stream, schemas.stream_id, part)]).encode()
        sha = hashlib.sha256(data).hexdigest()
        path = FOLDER / f"{sha}.json"
        file = SchemasBackup(path.as_posix(), len(part), len(data), sha)
        if file not in entry.schemas or not (folder / path).is_file():
            write_whole(folder, path, data)
        listed.append(file)
    entry.schemas = listed


def read_schemas(folder: Path, entry: StreamBackup) -> list[SchemaVersion]:
    """Return a stream's schemas, by pattern and number. CorruptionError: a file differs, or holds no such. OSError."""
    from penstock.schemas.as_json import JSON_CHARS_MAX, schemas_of_json
    from penstock.schemas.plans import SchemaError

    found: list[SchemaVersion] = []
    for file in entry.schemas:
        path = str(folder / file.path)
        if file.size_bytes > JSON_CHARS_MAX:
            raise CorruptionError(path, 0, f"at most {JSON_CHARS_MAX} bytes", f"{file.size_bytes} in the manifest")
        data = read_whole(folder, file)
        try:
            streams = schemas_of_json(data.decode())
        except (SchemaError, UnicodeDecodeError) as error:
            raise CorruptionError(path, 0, "schemas of a stream", str(error)) from error
        versions = [version for one in streams for version in one.versions]
        if len(versions) != file.versions:
            raise CorruptionError(path, 0, f"{file.versions} versions of schemas", str(len(versions)))
        found += versions
    return sorted(found, key=lambda one: (one.typed.subject, one.number))


def delete_unlisted(folder: Path, manifest: Manifest) -> None:
    """Delete files with schemas that the manifest, which is written, does not list."""
    listed = {folder / file.path for entry in manifest.streams for file in entry.schemas}
    for path in (folder / FOLDER).glob("*.json"):
        if path not in listed:
            path.unlink()


def _parts(versions: Sequence[SchemaVersion]) -> Iterator[tuple[SchemaVersion, ...]]:
    """Split the versions, in order, so that the different texts of each part have a bounded size."""
    part: list[SchemaVersion] = []
    texts: set[tuple[object, ...]] = set()
    size = 0
    for version in versions:
        text, more = _text(version.schema)
        if part and text not in texts and size + more > TEXT_BYTES_PER_FILE_MAX:
            yield tuple(part)
            part, texts, size = [], set(), 0
        if text not in texts:
            texts.add(text)
            size += more
        part.append(version)
    if part:
        yield tuple(part)


def _text(schema: Schema) -> tuple[tuple[object, ...], int]:
    """Return the identity of a schema's text, and its bytes with the included files."""
    size = len(schema.text.encode()) + sum(len(name.encode()) + len(text.encode()) for name, text in schema.closure)
    return (schema.kind, schema.text, schema.closure), size
