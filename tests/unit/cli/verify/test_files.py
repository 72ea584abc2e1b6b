"""`penstock verify` of files: which logs it finds, how replicas are compared, and what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Log, LogConfig, LogFolder
from penstock.commitlog.files.files import holds_messages
from penstock.ops.verify.files import logs_of, verify_files
from penstock.vfs import Vfs
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.real import RealVfs
from tests.cli_app import app
from tests.encryption import encryption_keys
from tests.extent import each_change
from tests.keyed import append_keyed
from tests.logs import DIRECTORY, clean_all, open_log, save

SEGMENT = f"{0:020d}.arrows"
CONFIG = LogConfig(segment_bytes=4096)
Told = tuple[bytes | None, bytes | None]


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def verify(*arguments: object) -> Said:
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    return Said(result.exit_code, result.stdout, result.stderr)


def test_partitions_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 0, 1):
        (tmp_path / "streams/00000004-orders" / str(number)).mkdir(parents=True)
    assert [one.partition for one in logs_of(tmp_path)] == [0, 1, 2, 10]


@pytest.fixture
def disk(tmp_path: Path) -> Callable[..., Path]:
    """Makes a data directory with one log of these messages, a batch each."""

    def make(name: str, *messages: Told, committed: int | None = None, clean: bool = False) -> Path:
        path = tmp_path / name
        path.mkdir()
        log = open_log(RealVfs(str(path)), CONFIG)
        _fill(log, messages, committed)
        if clean:
            assert clean_all(log, 10**12)
            while (disposal := log.dispose()) is not None:
                disposal.run()
                log.disposed()
        log.close()
        return path

    return make


def _fill(log: Log, messages: tuple[Told, ...], committed: int | None) -> None:
    log.start_epoch(1)
    for number, message in enumerate(messages):
        append_keyed(log, [message], number)
    save(log)
    log.note_committed(log.log_end if committed is None else committed)
    save(log)


def some(count: int = 40) -> Iterator[Told]:
    for number in range(count):
        yield b"k%d" % (number % 7), b"value %d" % number


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@each_change
def test_equal_replicas_one_of_which_was_cleaned(disk: Callable[..., Path], tmp_path: Path) -> None:
    one, two = disk("one", *some()), disk("two", *some(), clean=True)
    before = contents(tmp_path)
    said = verify(one, two)
    assert (said.code, said.err) == (0, "")
    assert said.out.count("orders/0") == 2
    assert said.out.count("0 to 39") == 4  # what they have, and what of it was compared
    assert said.out.endswith("Sound: 2 logs, 80 rows.\n")
    rows = verify(one, two, "--json").rows
    assert [row["verdict"] for row in rows] == ["sound", "sound"]
    assert rows[0]["size_bytes"] > rows[1]["size_bytes"]
    assert contents(tmp_path) == before


@each_change
def test_damage_is_named_and_costs_exit_code_1(disk: Callable[..., Path], tmp_path: Path) -> None:
    one, two = disk("one", *some()), disk("two", *some())
    segment = two / DIRECTORY / SEGMENT
    data = bytearray(segment.read_bytes())
    data[SCHEMA_BYTES + 725] ^= 1
    segment.write_bytes(data)
    before = contents(tmp_path)
    said = verify(one, two)
    assert said.code == 1
    assert f"DAMAGE in {segment} at byte {SCHEMA_BYTES}: expected CRC-32C" in said.out
    assert "lost: 0\n" in said.out
    assert "Not sound: 1 of 2 logs" in said.out
    assert "DIFFERENCE" not in said.out  # what cannot be read is not compared
    sound, damaged = verify(one, two, "--json").rows
    assert (sound["verdict"], damaged["verdict"]) == ("sound", "damaged")
    assert [damaged["damage"][0][name] for name in ("base_offset", "end_offset")] == [0, 1]
    assert contents(tmp_path) == before
    alone = verify(segment, "--json")
    assert (alone.code, alone.rows[0]["damage"][0]["position"]) == (1, SCHEMA_BYTES)


@each_change
def test_another_row_is_a_difference_and_the_majority_is_not_blamed(disk: Callable[..., Path]) -> None:
    other = list(some())
    other[25] = (b"k", b"something else")
    paths = disk("one", *some()), disk("two", *other), disk("three", *some())
    said = verify(*paths)
    assert said.code == 1
    assert "1 row not the same at the same offset; first offsets: 25" in said.out
    rows = verify(*paths, "--json").rows
    assert [row["verdict"] for row in rows] == ["sound", "differs", "sound"]
    (difference,) = rows[1]["differences"]
    assert (difference["others"], difference["first_offsets"], difference["legal"]) == ([str(paths[1])], [25], False)


def test_of_two_nobody_knows_which_is_right(disk: Callable[..., Path]) -> None:
    paths = disk("one", *some()), disk("two", *some(39), (None, None))
    assert [row["verdict"] for row in verify(*paths, "--json").rows] == ["differs", "differs"]


def test_only_what_both_know_to_be_committed_is_compared(disk: Callable[..., Path]) -> None:
    other = [*list(some())[:30], *((b"k", b"never committed") for _ in range(5))]
    said = verify(disk("one", *some()), disk("two", *other, committed=30), "--json")
    assert said.code == 0
    assert [(row["compared_from"], row["compared_end"]) for row in said.rows] == [(0, 30), (0, 30)]


def test_a_replica_that_knows_of_no_commit_is_not_compared(disk: Callable[..., Path]) -> None:
    said = verify(disk("one", *some()), disk("two", *some(3), committed=0), "--json")
    assert said.code == 0
    assert [row["compared_end"] for row in said.rows] == [None, None]


def test_what_is_torn_is_told_and_no_damage(disk: Callable[..., Path]) -> None:
    one = disk("one", *some(3))
    segment = one / DIRECTORY / SEGMENT
    with segment.open("ab") as file:
        file.write(b"half a batch")
    said = verify(one)
    assert said.code == 0
    assert "was not flushed, and is not verified" in said.out


def test_one_stream_of_several(disk: Callable[..., Path]) -> None:
    one = disk("one", *some(3))
    assert verify(one, "--stream", "orders").out.endswith("Sound: 1 log, 3 rows.\n")
    said = verify(one, "--stream", "others")
    assert (said.code, said.err) == (2, "Error: there is no log of stream 'others'\n")


def test_the_folder_of_a_stream_or_of_a_log(disk: Callable[..., Path]) -> None:
    one = disk("one", *some(3))
    for path in (one / DIRECTORY, (one / DIRECTORY).parent):
        assert verify(path).out.endswith("Sound: 1 log, 3 rows.\n")


@each_change
def test_what_is_no_log(tmp_path: Path) -> None:
    said = verify(tmp_path)
    assert (said.code, "holds no log" in said.err) == (2, True)
    (tmp_path / "mine.txt").touch()
    assert "nor a segment" in verify(tmp_path / "mine.txt").err
    said = verify(tmp_path / "none")
    text = " ".join(said.err.replace("│", " ").split())  # in a box, which breaks lines where it ends
    assert (said.code, "there is no such file or folder" in text) == (2, True)


def test_directories_of_different_clusters_are_not_compared(disk: Callable[..., Path]) -> None:
    one, two = disk("one", *some(3)), disk("two", *some(3))
    for number, path in enumerate((one, two)):
        (path / "penstock.json").write_text(json.dumps({"format": 1, "id": "x", "cluster_id": f"cluster {number}"}))
    said = verify(one, two)
    assert (said.code, "different clusters" in said.err) == (2, True)


@pytest.mark.parametrize("name", ["before-raft", "before-compaction"])
def test_directories_of_earlier_versions_are_sound(name: str) -> None:
    said = verify(Path(__file__).parents[3] / "compat/golden" / name)
    assert (said.code, said.err) == (0, "")


def _fifo(place: Path) -> None:
    os.mkfifo(place)


def _loop(place: Path) -> None:
    place.symlink_to(place.name)


@each_change
@pytest.mark.parametrize("make", [_fifo, _loop], ids=["fifo", "loop"])
@pytest.mark.parametrize("name", [SEGMENT, "checkpoint", "lineage", f"{0:020d}.index"])
def test_what_is_no_file_is_damage_and_other_logs_are_verified(
    disk: Callable[..., Path], make: Callable[[Path], None], name: str
) -> None:
    one, two = disk("one", *some()), disk("two", *some())
    log = Log.open(LogFolder(RealVfs(str(one)), "streams/00000008-other/0", 8, 0), CONFIG, now_us=0)
    _fill(log, tuple(some()), None)
    log.close()
    place = two / DIRECTORY / name
    place.unlink()
    make(place)
    rows = {(row["stream"], row["replica"]): row for row in verify(one, two, "--json").rows}
    assert len(rows) == 3
    assert rows["orders", str(one)]["verdict"] == rows["other", str(one)]["verdict"]
    bad = rows["orders", str(two)]
    assert (bad["verdict"], [damage["file"] for damage in bad["damage"]]) == ("damaged", [str(place)])
    said = verify(two)
    assert (said.code, f"DAMAGE in {place} at byte 0: expected bytes, found" in said.out) == (1, True)


@pytest.mark.parametrize("name", ["log", "snapshot"])
def test_metadata_that_is_no_file_is_told(disk: Callable[..., Path], name: str) -> None:
    one, two = disk("one", *some()), disk("two", *some())
    (one / "raft").mkdir()
    os.mkfifo(one / "raft" / name)
    assert verify(one).err == ""  # nothing is compared, so nobody asks for the stream's config
    said = verify(one, two)
    assert said.code == 0
    assert said.err == (
        f"the stream configs in {one} cannot be read: {one}/raft/{name}: not a regular file, but a FIFO\n"
    )


def _nested(place: Path) -> None:
    place.write_text("[" * 200_000)


def _huge(place: Path) -> None:
    place.touch()
    os.truncate(place, 20 << 30)


@pytest.mark.parametrize(
    ("make", "why"),
    [(_fifo, "not a regular file, but a FIFO"), (_nested, "more than the 65536"), (_huge, "21474836480 bytes")],
)
def test_an_identity_that_cannot_be_read_is_told_and_the_logs_are_verified(
    disk: Callable[..., Path], make: Callable[[Path], None], why: str
) -> None:
    one = disk("one", *some(3))
    make(one / "penstock.json")
    said = verify(one)
    assert (said.code, said.out.endswith("Sound: 1 log, 3 rows.\n")) == (0, True)
    assert said.err.startswith(f"the cluster of {one} is unknown: {one}/penstock.json: ")
    assert why in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("text", ["[" * 60_000, "[]", "{", "\udcff"])
def test_an_identity_that_is_no_identity(disk: Callable[..., Path], text: str) -> None:
    one = disk("one", *some(3))
    (one / "penstock.json").write_bytes(text.encode(errors="surrogateescape"))
    said = verify(one)
    assert said.code == 0
    assert said.err.startswith(f"the cluster of {one} is unknown: {one}/penstock.json: ")


def test_rows_that_cannot_be_read_again_are_told(disk: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> Iterator[object]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("penstock.commitlog.verify.verifying.batches_between", gone)
    said = verify(disk("one", *some()), disk("two", *some(39), (None, None)), "--json")
    assert said.code == 1
    assert {row["not_verified"] for row in said.rows} == {
        "its rows could not be compared: [Errno 5] Input/output error"
    }


OTHER = "streams/00000008-bills/0"


def _two_streams(path: Path, *, is_encrypted: bool) -> tuple[Path, Path]:
    """The folders of the logs of two streams of one data directory."""
    path.mkdir()
    vfs: Vfs = RealVfs(str(path))
    if is_encrypted:
        vfs = EncryptedVfs(vfs, encryption_keys(), holds_messages, Random(1).randbytes)
    for directory, stream_id in ((DIRECTORY, 7), (OTHER, 8)):
        log = Log.open(LogFolder(vfs, directory, stream_id, 0), CONFIG, now_us=0)
        _fill(log, tuple(some(12)), None)
        log.close()
    return path / DIRECTORY, path / OTHER


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_files_that_were_swapped_with_those_of_another_stream_are_damage(tmp_path: Path, is_encrypted: bool) -> None:
    """All of them together: they fit each other. A start of the broker takes none of them for the stream's."""
    one, other = _two_streams(tmp_path / "a", is_encrypted=is_encrypted)
    keys = encryption_keys() if is_encrypted else None
    found, _ = verify_files([tmp_path / "a"], keys=keys)
    assert [replica.verdict for replica in found] == ["sound", "sound"]
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    found, _ = verify_files([tmp_path / "a"], keys=keys)
    assert [replica.verdict for replica in found] == ["damaged", "damaged"]
    told = {(place.expected, place.found) for place in found[0].damage}
    assert told == {("stream 7, partition 0", "stream 8, partition 0")}
    lost = [(place.base_offset, place.end_offset) for place in found[0].damage if place.base_offset is not None]
    assert (lost[0][0], lost[-1][1]) == (0, None)
    (alone,) = verify_files([one / SEGMENT], keys=keys)[0]
    assert alone.verdict == "damaged"


def test_a_log_that_was_made_has_a_checkpoint(disk: Callable[..., Path]) -> None:
    path = disk("a", *some())
    (path / DIRECTORY / "checkpoint").unlink()
    assert verify(path).code == 0, "nothing says that it was made"
    (path / "made").mkdir()
    (path / "made" / "00000007-orders").touch()
    said = verify(path)
    assert said.code == 1
    assert "/checkpoint at byte 0: expected a checkpoint, found none; no row is lost with it" in said.out
