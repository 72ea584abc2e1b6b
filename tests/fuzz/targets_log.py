"""The files of a log: checkpoint, lineage, index, and all of them together with segments, as a start finds them."""

from __future__ import annotations

import contextlib
import re
import struct
from itertools import pairwise
from random import Random

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.commitlog import Log, LogConfig, LogMissingError, LogState
from penstock.commitlog.errors import IndexDamagedError
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files import index
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.index import ENTRY_BYTES, FileEntries, PackedEntries
from penstock.commitlog.files.lineage import BatchLineage, LineageEntry
from penstock.commitlog.subjects import layout, reading
from penstock.commitlog.subjects.reading import SubjectIndex, WantedSubjects
from penstock.commitlog.verify import dump
from penstock.commitlog.verify.verifying import NotALogError, verify_log
from penstock.hot.crc import crc32c
from penstock.vfs.memory import Keep, MemoryVfs
from tests.fuzz import messages_made
from tests.fuzz.disks import all_files, holding
from tests.fuzz.parts import joined, parted
from tests.fuzz.target import Cover, Modules, Target
from tests.logs import DIRECTORY, PARTITION, STREAM_ID, Message, append, flush, log_files, messages_in, open_log, save
from tests.subjects import written

_CONFIG = LogConfig(segment_bytes=2_500)
_EDGES = (0, 1, 2, 3, 24, 64, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
_NO_DIGITS = str.maketrans("", "", "0123456789")
_NAME = re.compile(rb"[A-Za-z0-9._-]{1,60}")


def _kind(error: Exception) -> str:
    return f"{type(error).__name__} {str(error)[-60:]}".translate(_NO_DIGITS)


def checkpoint(modules: Modules, data: bytes) -> object:
    """The newest whole slot of any bytes, and a place to write the next one that leaves it."""
    vfs = holding({"log/checkpoint": data})
    found = checkpoints.read(vfs, "log")
    assert len(found.mistakes) <= 2
    if found.newest is None:
        return f"none {len(found.mistakes)}"
    assert checkpoints.unpack_slot(checkpoints.pack_slot(found.newest)) == found.newest
    if found.newest.sequence >= 2**63:
        return "late"
    file = checkpoints.CheckpointFile(vfs, "log", found.newest.sequence, found.slot, is_alone=found.is_alone)
    file.write(found.newest)
    file.sync()
    again = checkpoints.read(vfs, "log").newest
    assert again == found.newest._replace(sequence=found.newest.sequence + 1)
    return f"{found.slot} {found.is_alone} {len(found.mistakes)}"


def made_checkpoint(chance: Random) -> bytes:
    """Two slots, or one, or a part."""
    out = bytearray(4096 + 96)
    for slot in (0, 1):
        if chance.random() < 0.85:
            values = [chance.choice(_EDGES) for _ in range(9)]
            values[2], values[3] = values[2] % 2**32, values[3] % 2**32
            point = checkpoints.Checkpoint._make([4 + slot, *values[1:], 0])
            out[4096 * slot : 4096 * slot + 96] = checkpoints.pack_slot(point)
    return bytes(out[: int(chance.random() * len(out))] if chance.random() < 0.1 else out)


def sealed_checkpoint(data: bytes) -> bytes:
    """Both slots with right checksums and marks."""
    out = bytearray(data)
    for begin in (0, 4096):
        if len(out) >= begin + 96 and any(out[begin : begin + 96]):
            out[begin : begin + 8] = checkpoints.MARK
            struct.pack_into("<I", out, begin + 92, crc32c(bytes(out[begin : begin + 92])))
    return bytes(out)


def lineage(modules: Modules, data: bytes) -> object:
    """The entries of any bytes, in order; and a file that says what a log has a use for."""
    vfs = holding({"log/lineage": data})
    found = lineages.read(vfs, "log")
    assert len(found.entries) * 24 <= len(data)
    told = (BatchLineage(2, 9, 1, (LineageEntry(2, 2), LineageEntry(4, 7))), BatchLineage(9, 9, 0, ()))
    doubt = lineages.is_in_doubt(found, told, 1, 50)
    entries = lineages.recover(vfs, "log", found, 1, 50, told)
    again = lineages.read(vfs, "log")
    if again.mistake is None and len(again.entries) == len(entries):
        assert again.entries == entries, (again.entries, entries)
    assert all(one.leader_epoch < two.leader_epoch for one, two in pairwise(entries))
    assert all(one.start_offset <= 50 for one in entries)
    one = lineages.Lineage(vfs, "log", entries)
    for epoch in (0, 1, 3, 2**32):
        assert one.epoch_end(epoch, 50).start_offset <= 50
    one.epoch_before(9), one.says(3, 9)
    return f"{min(len(found.entries), 6)} {found.mistake is None} {doubt} {len(entries)}"


def made_lineage(chance: Random) -> bytes:
    """Leaderships in order, but for one or none."""
    epoch = offset = 0
    out = b""
    for _ in range(int(chance.random() * 8)):
        epoch += chance.choice((1, 1, 2, 0, 2**31))
        offset += chance.choice((0, 1, 5, 20, 2**62 if chance.random() < 0.05 else 3))
        out += lineages.pack_entry(LineageEntry(epoch % 2**64, offset % 2**64))
    return out + bytes(int(chance.random() * 30) if chance.random() < 0.2 else 0)


def _sealed_entries(size: int) -> object:
    def sealed(data: bytes) -> bytes:
        out = bytearray(data)
        for begin in range(0, len(out) - size + 1, size):
            struct.pack_into("<I", out, begin + size - 4, crc32c(bytes(out[begin : begin + size - 4])))
        return bytes(out)

    return sealed


sealed_lineage = _sealed_entries(24)
sealed_index = _sealed_entries(ENTRY_BYTES)


def index_file(modules: Modules, data: bytes) -> object:
    """An index: believed where it ends as its segment does, and every entry of it that is looked at is checked."""
    vfs = holding({"log/x.index": data})
    file = vfs.open("log/x.index", read_only=True)
    out = ""
    sound = index.last_sound_entry(file, base_offset=5, end_position=SCHEMA_BYTES + 2_000)
    if sound is not None:
        count, first, last = sound
        assert 0 < count <= len(data) // ENTRY_BYTES
        assert first.position == SCHEMA_BYTES
        assert last.extent().end_position <= SCHEMA_BYTES + 2_000
        out += "head "
    end = data[-ENTRY_BYTES:]
    wanted = (0, 0)
    if len(end) == ENTRY_BYTES:
        position, _, end_offset = struct.unpack_from("<QQQ", end)
        wanted = position + struct.unpack_from("<I", end, 40)[0], end_offset
    try:
        entries = FileEntries(file, end_position=wanted[0], end_offset=wanted[1])
        for number in range(min(entries.count, 20)):
            entries.entry(number)
        for time_us in (-(2**63), 0, 5, 2**62):
            index.first_not_before(entries, time_us)
        for number in (0, 7, 2**63):
            index.last_ending_at_or_below(entries, number)
            index.last_ending_at_or_below_position(entries, number)
            assert -1 <= entries.last_at_or_below(number) < entries.count
    except IndexDamagedError as error:
        return out + _kind(error)
    packed = PackedEntries(data)
    assert [packed.entry(number) for number in range(packed.count)][:20] == [
        entries.entry(number) for number in range(min(entries.count, 20))
    ]
    if all(max(packed.entry(number)[:3]) < 2**63 for number in range(packed.count)):
        assert list(packed.columns().base_offsets) == [
            packed.entry(number).base_offset for number in range(packed.count)
        ]
    packed.last_at_or_below(7)
    return out + f"{min(entries.count, 9)}"


def made_index(chance: Random) -> bytes:
    """Entries of batches that follow each other."""
    out, position, offset = b"", SCHEMA_BYTES, 5
    for _ in range(int(chance.random() * 8)):
        size, rows = chance.choice((704, 900, 2**31)), chance.choice((1, 2, 3))
        edge = chance.choice(_EDGES) if chance.random() < 0.05 else offset
        body = index._BODY.pack(
            position, edge, offset + rows, 5, 7, size, rows, 1, 9, 1 if chance.random() < 0.98 else 2
        )
        out += body + struct.pack("<I", crc32c(body))
        position, offset = position + size, offset + rows
    return out + bytes(int(chance.random() * 64) if chance.random() < 0.1 else 0)


def subject_index(modules: Modules, data: bytes) -> object:
    """A subject index: each part is checked before it is believed, and what a look-up finds is what the table says."""
    file = holding({"log/x.subjects": data}).open("log/x.subjects", read_only=True)
    out = ""
    try:
        trailer = reading.read_trailer(file)
        found = SubjectIndex(file, trailer)
        out += "trailer "
        for subject in (b"a", b"n.1", b"zz"):
            row = found.find(subject)
            assert row is None or row.subject.encode() == subject
            assert found.find_each(WantedSubjects([subject])) == (
                {} if row is None else {subject: (row.first, row.last)}
            )
            out += f"{row is None} "
        out += f"{sum(batch.num_rows for batch in found.between(b'n', b'o'))} "
        kept = SubjectIndex(file, trailer, SubjectIndex(file, trailer).read_filter())
        rows = [block.row(number) for block in found.check() for number in range(len(block))]
    except CorruptionError as error:
        expected, found_words = (" ".join(str(one).split()[:2]) for one in (error.expected, error.found))
        words = found_words.strip("0123456789abcdef") if expected.startswith("a block") else ""  # no checksum
        return out + f"{type(error).__name__} {expected} {words}".translate(_NO_DIGITS).partition("CRC")[0]
    subjects = [row.subject.encode() for row in rows]
    assert subjects == sorted(set(subjects))
    for one in (found, kept):
        assert [one.find(subject) for subject in subjects] == rows
        assert [*one.find_each(WantedSubjects(subjects)).values()] == [(row.first, row.last) for row in rows]
    return out + f"{min(len(rows), 9)} sound"


def sealed_subjects(data: bytes) -> bytes:
    """The same with all checksums put right, as far as its parts can be found."""
    out = bytearray(data)
    if len(out) < layout.TRAILER_BYTES:
        return data
    at = len(out) - layout.TRAILER_BYTES
    blocks, pages, directory_bytes = struct.unpack_from("<3I", out, at + 72)
    directory = max(0, at - directory_bytes)
    begin = directory - 256 * pages
    for number in range(min(blocks, (at - directory) // 24)):
        place = directory + 24 * number
        position, size = struct.unpack_from("<QI", out, place)
        if position + size <= begin:  # else it has bytes that are changed below
            struct.pack_into("<I", out, place + 16, crc32c(bytes(out[position : position + size])))
    for number in range(pages if begin >= 0 else 0):
        page = begin + 256 * number
        crc = crc32c(struct.pack("<I", number), crc32c(bytes(out[page : page + 252])))
        struct.pack_into("<I", out, page + 252, crc)
    struct.pack_into("<I", out, at + 84, crc32c(bytes(out[directory:at])))
    struct.pack_into("<I", out, at + 92, crc32c(bytes(out[at : at + 92])))
    return bytes(out)


def made_subjects(chance: Random) -> bytes:
    """The index of a segment with few subjects."""
    count = 1 + int(chance.random() * 30)
    names = [chance.choice(("a", "n.1", "n.ü", f"o.{int(chance.random() * 20)}", "z" * 99)) for _ in range(count)]
    file = written(names)
    return file.read_at(0, file.size())


# All files of a log.


def _written(seed: int) -> dict[bytes, bytes]:
    """The files of a log of some segments and leaderships, stopped or killed."""
    chance = Random(seed)
    disk = MemoryVfs()
    log = open_log(disk, _CONFIG)
    for epoch in range(1, 2 + seed % 3):
        log.start_epoch(epoch)
        for number in range(1 + int(chance.random() * 3)):
            append(log, 1 + int(chance.random() * 3), 100 * epoch + number, size_bytes=chance.choice((0, 100, 900)))
            if chance.random() < 0.4:
                flush(log)
                log.checkpoint()
    if chance.random() < 0.5:
        save(log)
    if chance.random() < 0.5:
        log.close()
    files = all_files(disk.crash_clone(Keep.ALL))
    return {path.rpartition("/")[2].encode(): data for path, data in files.items()}


_LOGS = tuple(_written(seed) for seed in range(12))


def _own_checkpoint(chance: Random) -> bytes:
    """One of this log, which may name other offsets than there are."""
    end, start = chance.choice((0, 3, 9, 10**6)), chance.choice((0, 0, 2, 50))
    point = checkpoints.Checkpoint(
        3, STREAM_ID, PARTITION, 1, end, chance.choice((0, 3)), chance.choice((0, 568, 2_000)), start, 9
    )
    return checkpoints.pack_slot(point) + (b"" if chance.random() < 0.5 else bytes(4000) + b"x" * 96)


def made_folder(chance: Random) -> bytes:
    """The files of a real log; one of them is gone, another's, or made anew."""
    files = dict(chance.choice(_LOGS))
    kind = chance.random()
    name = chance.choice(list(files))
    if kind < 0.1:
        del files[name]
    elif kind < 0.2:
        files[chance.choice((b"%020d.arrows" % 4, b"%020d.1.arrows" % 0, b"%020d.1.cleaned" % 0, b"x"))] = files[name]
    elif kind < 0.3:
        files[b"checkpoint"] = _own_checkpoint(chance)
        if chance.random() < 0.3:
            files = {one: content for one, content in files.items() if not one.endswith(b".arrows")}
    elif kind < 0.4:
        files[b"lineage"] = made_lineage(chance)
    elif kind < 0.6:
        files[b"%020d.arrows" % 0] = schema_message(7, chance.choice((0, 0, 0, 1))) + messages_made.made_messages(
            chance
        )
    elif kind < 0.65:
        files[name] = files[name][: int(chance.random() * len(files[name]))]
    return joined(part for item in files.items() for part in item)


def sealed_folder(data: bytes) -> bytes:
    """Every file with its checksums put right."""
    parts = parted(data)
    for number in range(0, len(parts) - 1, 2):
        name, content = parts[number], parts[number + 1]
        if name.endswith(b".arrows"):
            content = content[:SCHEMA_BYTES] + messages_made.sealed(content[SCHEMA_BYTES:])
        elif name.endswith(b".index"):
            content = sealed_index(content)  # type: ignore[operator]
        elif name == b"checkpoint":
            content = sealed_checkpoint(content)
        elif name == b"lineage":
            content = sealed_lineage(content)  # type: ignore[operator]
        parts[number + 1] = content
    return joined(parts)


def _readable(log: Log) -> list[Message]:
    """What a consumer gets who steps over damage."""
    found: list[Message] = []
    view = log.view()
    offset = view.log_start
    while offset < view.log_end:
        try:
            header, data = next(view.batches(offset, view.log_end))
        except RemoteError as error:
            after = error.details["end_offset"]
        else:
            with contextlib.suppress(CorruptionError):  # a batch with a right checksum whose rows nobody checks here
                found += messages_in(data)
            after = header.end_offset
        assert after > offset, (after, offset)
        offset = after
    return found


def folder(modules: Modules, data: bytes) -> object:
    """A start on any files: a log that reads the same after the next start, and no byte of a segment is lost."""
    parts = parted(data)
    files = {
        f"{DIRECTORY}/{name.decode()}": content
        for name, content in zip(parts[::2], parts[1::2], strict=False)
        if _NAME.fullmatch(name) and name.strip(b".")
    }
    vfs = holding(files)
    if not files:
        return "no file"
    try:
        found_by_verify = verify_log(vfs, DIRECTORY)
        told = f"{len(found_by_verify.mistakes)} {found_by_verify.torn is None}"
    except NotALogError:
        told = "no log"
    assert all_files(vfs) == files
    for path in log_files(vfs):
        if ".cut-" not in path:
            assert all(isinstance(row, dict) for row in dump.file_rows(vfs, path))
    try:
        log = open_log(vfs, _CONFIG, must_exist=len(data) % 2 == 1)
    except LogMissingError:
        return f"{told} missing"
    assert (log.state is LogState.READ_ONLY) == bool(log.damage), (log.state, log.damage)
    assert 0 <= log.log_start <= log.log_end
    found = _readable(log)
    state, start, end, cuts = log.state, log.log_start, log.log_end, len(log.cuts)
    log.close()
    is_known = checkpoints.read(vfs, DIRECTORY).newest is not None
    again = open_log(vfs, _CONFIG)
    if again.damage and state is LogState.WRITABLE:
        return f"{state} {cuts} {told} found later"  # an index had vouched for it, until a reader came
    if state is LogState.READ_ONLY and again.state is LogState.WRITABLE and is_known:
        # An index was wrong: reading found that what it says is not there, and it was built anew from sound batches.
        after = _readable(again)
        assert all(one in after for one in found)
        return f"{state} {cuts} {told} made sound"
    if state is LogState.READ_ONLY and not is_known:
        # Nothing says what was flushed, and an index that vouched for damage may be gone by now: then it is cut.
        return f"{state} {cuts} {told} in doubt"
    if state is LogState.READ_ONLY and any("before the previous one ends" in one.reason for one in again.damage):
        # Sound batches of two segments say that they are at the same offsets, and an index had vouched for one of them.
        return f"{state} {cuts} {told} {again.state} contradiction"
    assert (again.state, again.log_start, again.log_end) == (state, start, end), (again.state, again.log_end, end)
    assert _readable(again) == found
    again.close()
    return f"{state} {cuts} {told} {min(len(found), 9)}"


_RARE = "of a disk that fails, which the unit tests do"

TARGETS: tuple[Target, ...] = (
    Target(
        "checkpoint",
        checkpoint,
        made_checkpoint,
        (Cover("penstock.commitlog.files.checkpoint", ("pack_slot", "unpack_slot", "read", "_unused_mistake")),),
        seal=sealed_checkpoint,
    ),
    Target(
        "lineage",
        lineage,
        made_lineage,
        (
            Cover(
                "penstock.commitlog.files.lineage",
                (
                    "pack_entry",
                    "unpack_entry",
                    "read",
                    "_take",
                    "rewrite",
                    "write_new",
                    "put_in_place",
                    "is_in_doubt",
                    "recover",
                    "amended",
                    "_mend",
                    "_write_again",
                    "still_needed",
                    "Lineage.epoch_end",
                ),
            ),
        ),
        seal=sealed_lineage,  # type: ignore[arg-type]
    ),
    Target(
        "index",
        index_file,
        made_index,
        (
            Cover(
                "penstock.commitlog.files.index",
                (
                    "unpack_entry",
                    "FileEntries",
                    "PackedEntries",
                    "last_sound_entry",
                    "first_not_before",
                    "last_ending_at_or_below",
                    "last_ending_at_or_below_position",
                ),
                {"PackedEntries.data": "a property that nobody calls while it is read"},
            ),
        ),
        seal=sealed_index,  # type: ignore[arg-type]
    ),
    Target(
        "subjects",
        subject_index,
        made_subjects,
        (
            Cover("penstock.commitlog.subjects.layout", ("unpack_trailer", "Directory", "checked_page")),
            Cover("penstock.commitlog.subjects.blocks", ("decode", "spans", "_layout_mistake", "_read")),
            Cover("penstock.commitlog.subjects.reading"),
        ),
        seal=sealed_subjects,
    ),
    Target(
        "folder",
        folder,
        made_folder,
        (
            Cover("penstock.commitlog.files.batch_walk"),
            Cover("penstock.commitlog.recovery", ("Recovery",)),
            Cover("penstock.commitlog.verify.segment_check", ("SegmentCheck",)),
            Cover("penstock.commitlog.segment.index_check", ("IndexCheck",)),
            Cover(
                "penstock.commitlog.files.files", ("parsed", "base_offset_of", "is_unfinished", "owner_of", "is_known")
            ),
        ),
        seal=sealed_folder,
        memory_bytes=limits.SCAN_READ_BYTES * 4 + 32 * 1024 * 1024,
        is_slow=True,
    ),
)
