"""Consumers in the folder of a backup: what was written is read, and anything else is damage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.base.errors import CorruptionError, OperationalError
from penstock.base.ids import Offset
from penstock.messages import ExportedConsumer
from penstock.ops.backup.consumers import (
    FILE_BYTES_MAX,
    STATE_BYTES_PER_FILE_MAX,
    delete_unlisted,
    read_consumers,
    write_consumers,
)
from penstock.ops.backup.files import (
    ConsumersBackup,
    Manifest,
    StreamBackup,
    read_manifest,
    write_manifest,
    write_whole,
)
from penstock.ops.backup.verifying import VerifiedConsumers, verify_backup
from penstock.ops.carried_consumers import CarriedConsumer
from tests.unit.ops.backup.test_schemas import entry

FORGED = "consumers/forged.json"
GOLDEN = Path("tests/compat/golden/backup-consumers.json")
"""As release 0.4 writes it: it is never written anew."""
KEPT = [
    CarriedConsumer(
        0,
        ExportedConsumer(
            name="billing",
            config={"durable_name": "billing", "ack_policy": "explicit", "filter_subject": "é.>"},
            next_offset=Offset(42),
            deliveries=57,
            ack_pending=3,
            since=Offset(7),
            state=b"\x01\x00\xff",
        ),
    ),
    CarriedConsumer(1, ExportedConsumer(name="b", config={}, next_offset=Offset(2**60))),
]


def large(number: int, size: int) -> CarriedConsumer:
    return CarriedConsumer(0, ExportedConsumer(name=f"c{number}", config={}, next_offset=Offset(0), state=bytes(size)))


def listed(folder: Path, data: bytes, **other: Any) -> StreamBackup:
    """Write the content of a file of consumers, with its right hash, and list it."""
    write_whole(folder, Path(FORGED), data)
    file = ConsumersBackup(FORGED, 2, len(data), hashlib.sha256(data).hexdigest())
    return msgspec.structs.replace(entry(), consumers=[msgspec.structs.replace(file, **other)])


def test_all_that_a_consumer_has_comes_back(tmp_path: Path) -> None:
    stream = entry()
    write_consumers(tmp_path, stream, KEPT)
    write_manifest(tmp_path, Manifest(streams=[stream]))
    (found,) = read_manifest(tmp_path).streams
    assert read_consumers(tmp_path, found) == KEPT
    (path,) = (tmp_path / "consumers").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert verify_backup(tmp_path).consumers == [VerifiedConsumers("orders", 2, "sound")]


def test_files_are_written_and_read_as_they_were(tmp_path: Path) -> None:
    assert read_consumers(tmp_path, listed(tmp_path, GOLDEN.read_bytes())) == KEPT
    stream = entry()
    write_consumers(tmp_path, stream, KEPT)
    assert (tmp_path / stream.consumers[0].path).read_bytes() == GOLDEN.read_bytes()


def test_a_manifest_of_before_has_no_consumers(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest(streams=[entry()]))
    manifest = tmp_path / "penstock-backup.json"
    said = json.loads(manifest.read_text())
    del said["streams"][0]["consumers"]
    manifest.write_text(json.dumps(said))
    (found,) = read_manifest(tmp_path).streams
    assert (read_consumers(tmp_path, found), verify_backup(tmp_path).consumers) == ([], [])


def test_what_has_changed_replaces_what_was_there(tmp_path: Path) -> None:
    stream = entry()
    write_consumers(tmp_path, stream, KEPT)
    (before,) = (tmp_path / "consumers").iterdir()
    write_consumers(tmp_path, stream, KEPT[:1])
    delete_unlisted(tmp_path, Manifest(streams=[stream]))
    (after,) = (tmp_path / "consumers").iterdir()
    assert (after != before, read_consumers(tmp_path, stream)) == (True, KEPT[:1])
    write_consumers(tmp_path, stream, [])
    delete_unlisted(tmp_path, Manifest(streams=[stream]))
    assert (stream.consumers, [*(tmp_path / "consumers").iterdir()]) == ([], [])


def test_large_states_are_in_several_files(tmp_path: Path) -> None:
    stream, kept = entry(), [large(number, STATE_BYTES_PER_FILE_MAX // 3) for number in range(5)]
    write_consumers(tmp_path, stream, kept)
    assert [file.consumers for file in stream.consumers] == [2, 2, 1]
    assert max(file.size_bytes for file in stream.consumers) < FILE_BYTES_MAX
    assert read_consumers(tmp_path, stream) == kept


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"format":1}',
        GOLDEN.read_bytes().replace(b'{"format":1,"consumers"', b'{"format":2,"consumers"'),
        GOLDEN.read_bytes().replace(b'{"format":1,"name"', b'{"format":2,"name"'),
        GOLDEN.read_bytes().replace(b'"next_offset":42', b'"next_offset":-1'),
        GOLDEN.read_bytes().replace(b'"name":"b"', b'"name":""'),
        b'{"format":1,"consumers":[]}',
    ],
)
def test_what_is_no_file_of_consumers_is_damage(tmp_path: Path, data: bytes) -> None:
    assert data != GOLDEN.read_bytes()
    stream = listed(tmp_path, data)
    with pytest.raises(CorruptionError) as caught:
        read_consumers(tmp_path, stream)
    assert caught.value.file == str(tmp_path / FORGED)
    write_manifest(tmp_path, Manifest(streams=[stream]))
    assert [one.verdict for one in verify_backup(tmp_path).damaged] == ["damaged"]


def test_a_changed_file_is_damage_and_a_large_one_is_not_read(tmp_path: Path) -> None:
    data = GOLDEN.read_bytes()
    for other in ({"sha256": "0" * 64}, {"size_bytes": FILE_BYTES_MAX + 1}):
        with pytest.raises(CorruptionError):
            read_consumers(tmp_path, listed(tmp_path, data, **other))


def test_a_path_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    stream = listed(tmp_path, GOLDEN.read_bytes(), path="../x.json")
    write_manifest(tmp_path, Manifest(streams=[stream]))
    with pytest.raises(OperationalError, match="not in its folder"):
        read_manifest(tmp_path)
