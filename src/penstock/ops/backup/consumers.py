"""Consumers of streams in a backup: files of JSON, each with some consumers of one stream.

Rules: a file has the SHA-256 of its content as its name, so it does not change. A file holds at most
STATE_BYTES_PER_FILE_MAX of states, and at least one consumer. Its format has a number; a higher one is damage for this
reader. Files that the manifest does not list any more are deleted.

    {"format": 1, "consumers": [{"partition": 0, "exported": {"format": 1, "name": "billing", "config": {…},
     "next_offset": 42, "deliveries": 57, "ack_pending": 3, "since": 0, "state": "AQ…"}}]}

The fields of `exported` are those of `ExportedConsumer`; `state` is Base64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.messages import EXPORT_FORMAT, ExportedConsumer
from penstock.ops.backup.files import ConsumersBackup, Manifest, StreamBackup, read_whole, write_whole
from penstock.ops.carried_consumers import CarriedConsumer

FOLDER = Path("consumers")
FORMAT = 1
STATE_BYTES_PER_FILE_MAX = 8 << 20
"""With the configs, too."""
FILE_BYTES_MAX = 4 * STATE_BYTES_PER_FILE_MAX + 2 * limits.CONSUMER_ROW_BYTES_MAX


class _Consumer(msgspec.Struct, frozen=True):
    partition: int
    exported: ExportedConsumer


class _File(msgspec.Struct, frozen=True):
    format: int
    consumers: list[_Consumer]


def write_consumers(folder: Path, entry: StreamBackup, consumers: Sequence[CarriedConsumer]) -> None:
    """Write a stream's consumers, durably, and list the files in its entry; the caller writes the manifest."""
    listed = []
    for part in _parts(consumers):
        data = msgspec.json.encode(_File(FORMAT, [_Consumer(*one) for one in part]))
        sha = hashlib.sha256(data).hexdigest()
        path = FOLDER / f"{sha}.json"
        file = ConsumersBackup(path.as_posix(), len(part), len(data), sha)
        if file not in entry.consumers or not (folder / path).is_file():
            write_whole(folder, path, data)
        listed.append(file)
    entry.consumers = listed


def read_consumers(folder: Path, entry: StreamBackup) -> list[CarriedConsumer]:
    """Return a stream's consumers, as they were written. CorruptionError: a file differs, or holds no such. OSError."""
    found: list[CarriedConsumer] = []
    for file in entry.consumers:
        path = str(folder / file.path)
        if file.size_bytes > FILE_BYTES_MAX:
            raise CorruptionError(path, 0, f"at most {FILE_BYTES_MAX} bytes", f"{file.size_bytes} in the manifest")
        data = read_whole(folder, file)
        try:
            content = msgspec.json.decode(data, type=_File)
        except msgspec.DecodeError as error:
            raise CorruptionError(path, 0, "consumers of a stream", str(error)) from error
        formats = {content.format - FORMAT, *(one.exported.format - EXPORT_FORMAT for one in content.consumers)}
        if formats - {0}:
            raise CorruptionError(path, 0, f"format {FORMAT}, of consumers {EXPORT_FORMAT}", "another format")
        if len(content.consumers) != file.consumers:
            raise CorruptionError(path, 0, f"{file.consumers} consumers", str(len(content.consumers)))
        found += [CarriedConsumer(one.partition, one.exported) for one in content.consumers]
    return found


def delete_unlisted(folder: Path, manifest: Manifest) -> None:
    """Delete files with consumers that the manifest, which is written, does not list."""
    listed = {folder / file.path for entry in manifest.streams for file in entry.consumers}
    for path in (folder / FOLDER).glob("*.json"):
        if path not in listed:
            path.unlink()


def _parts(consumers: Sequence[CarriedConsumer]) -> Iterator[list[CarriedConsumer]]:
    """Split the consumers, in order, so that each part has a bounded size."""
    part: list[CarriedConsumer] = []
    size = 0
    for one in consumers:
        more = len(one.exported.state) + len(msgspec.json.encode(one.exported.config))
        if part and size + more > STATE_BYTES_PER_FILE_MAX:
            yield part
            part, size = [], 0
        part.append(one)
        size += more
    if part:
        yield part
