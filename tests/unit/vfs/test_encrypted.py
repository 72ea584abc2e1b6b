"""Files that are encrypted: what is in them, what becomes of damage, and which key opens them."""

from __future__ import annotations

import errno
from random import Random

import pytest

from penstock.hot.crc import crc32c
from penstock.vfs import File
from penstock.vfs import encrypted_format as form
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, nth
from penstock.vfs.keys import EncryptionKeys, KeyMissingError, KeyMistakeError, NoHeaderError
from penstock.vfs.memory import Keep, MemoryVfs
from penstock.vfs.rewrapping import key_ids, rewrap
from tests.encryption import encryption_keys
from tests.extent import each_change

_FIRST_RECORD = form.AREA_BYTES + form.BLOCK_HEADER_BYTES


def encrypted(memory: MemoryVfs | FaultyVfs, keys: EncryptionKeys | None = None) -> EncryptedVfs:
    keys = encryption_keys() if keys is None else keys
    return EncryptedVfs(memory, keys, lambda path: path.endswith(".secret"), Random(5).randbytes)


def written(memory: MemoryVfs, *records: bytes, keys: EncryptionKeys | None = None) -> File:
    """The raw file of one with these records."""
    file = encrypted(memory, keys).open("f.secret", create=True)
    for record in records:
        file.write_at(file.size(), record)
    file.close()
    return memory.open("f.secret")


def all_of(file: File) -> bytes:
    return file.read_at(0, file.size())


def test_nothing_of_what_was_written_can_be_seen() -> None:
    raw = all_of(written(memory := MemoryVfs(), b"attack at dawn", b"attack at dawn" * 9_000))
    assert b"attack" not in raw
    assert all_of(encrypted(memory).open("f.secret")) == b"attack at dawn" * 9_001
    assert encryption_keys().key("first", "") not in raw


def test_what_is_no_secret_stays_plain() -> None:
    memory = MemoryVfs()
    encrypted(memory).open("f.index", create=True).write_at(0, b"numbers")
    assert all_of(memory.open("f.index")) == b"numbers"


@pytest.mark.parametrize(
    "begin", [b"\xff\xff\xff\xffarrow", b"x", b"PNSENX" + bytes(200), bytes(200) + b"\xff" * 9_000]
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_plain_file_in_the_place_of_an_encrypted_one_is_not_opened_and_stays(begin: bytes, read_only: bool) -> None:
    memory = MemoryVfs()
    memory.open("f.secret", create=True).write_at(0, begin)
    with pytest.raises(NoHeaderError, match="is not encrypted, and its stream is"):
        encrypted(memory).open("f.secret", create=True, read_only=read_only)
    assert all_of(memory.open("f.secret")) == begin


def test_a_plain_file_that_comes_once_it_is_open_is_neither_read_nor_written() -> None:
    memory = MemoryVfs()
    file = encrypted(memory).open("f.secret", create=True)
    memory.open("f.secret").write_at(0, begin := b"\xff\xff\xff\xffarrow")
    for use in (lambda: file.read_at(0, 5), file.size, lambda: file.write_at(0, b"a"), lambda: file.truncate(0)):
        with pytest.raises(NoHeaderError):
            use()
    assert all_of(memory.open("f.secret")) == begin


def test_who_looks_at_files_of_any_stream_sees_plain_ones_as_they_are() -> None:
    memory = MemoryVfs()
    memory.open("f.secret", create=True).write_at(0, b"\xff\xff\xff\xffarrow")
    vfs = EncryptedVfs(memory, encryption_keys(), lambda _path: True, may_be_plain=True)
    assert all_of(vfs.open("f.secret", read_only=True)) == b"\xff\xff\xff\xffarrow"


def test_a_file_with_a_flip_in_both_copies_of_its_header_is_not_opened_and_stays() -> None:
    """It is not taken for one that a crash has left half made, which may be begun anew."""
    raw = written(memory := MemoryVfs(), b"a" * 100)
    for place in (100, form.SLOT_STEP_BYTES + 3):
        raw.write_at(place, bytes([raw.read_at(place, 1)[0] ^ 1]))
    before = all_of(raw)
    with pytest.raises(NoHeaderError, match="both copies of its header are damaged"):
        encrypted(memory).open("f.secret")
    assert all_of(raw) == before


@pytest.mark.parametrize("left", [0, 1, 5, 6, 40, 153, 156])
@pytest.mark.parametrize("zeros", [0, 9_000])
def test_a_header_that_a_crash_has_cut_short_is_written_anew(left: int, zeros: int) -> None:
    """Of each copy, which lies in one sector, it leaves all, nothing, or its begin."""
    raw = written(memory := MemoryVfs(), b"a" * 100)
    begin = raw.read_at(0, left)
    raw.truncate(0)
    raw.write_at(0, begin + (bytes(zeros) if left < 154 else b""))  # a sector is written, or it is not
    file = encrypted(memory).open("f.secret")
    file.truncate(0)
    file.write_at(0, b"new")
    assert all_of(encrypted(memory).open("f.secret")) == b"new"


@each_change
def test_no_byte_can_be_changed_unnoticed() -> None:
    """Whatever byte is flipped: what is read is what was written, or zeros from a record's begin on."""
    records = [b"a" * 300, b"b" * 10, b"c" * 70_000]
    plain = b"".join(records)
    memory = MemoryVfs()
    raw = written(memory, *records)
    whole = all_of(raw)
    places = [*range(160), *range(form.SLOT_STEP_BYTES, form.SLOT_STEP_BYTES + 160)]
    places += [*range(form.AREA_BYTES, form.AREA_BYTES + 450), *range(len(whole) - 120, len(whole))]
    places += range(form.AREA_BYTES + form.BLOCK_BYTES - 20, form.AREA_BYTES + form.BLOCK_BYTES + 60)
    lost = 0
    for place in places:
        raw.write_at(place, bytes([whole[place] ^ 0x40]))
        file = encrypted(memory).open("f.secret")
        found = file.read_at(0, len(plain))
        assert all(one in (other, 0) for one, other in zip(found, plain, strict=False)), place
        is_header = place < form.AREA_BYTES  # the other copy is there
        assert (found == plain) == is_header, place
        lost += not is_header
        raw.write_at(place, whole[place : place + 1])
    assert lost > 450
    assert all_of(encrypted(memory).open("f.secret")) == plain


def test_records_that_were_swapped_do_not_open() -> None:
    memory = MemoryVfs()
    raw = written(memory, b"a" * 100, b"b" * 100, b"c" * 100)
    step = 100 + form.OVERHEAD_BYTES
    first, second = (raw.read_at(_FIRST_RECORD + number * step, step) for number in (0, 1))
    raw.write_at(_FIRST_RECORD, second, first)
    assert encrypted(memory).open("f.secret").read_at(0, 100) == bytes(100)
    # Also with the begins that belong there: what a record is bound to is not what its header says.
    raw.write_at(_FIRST_RECORD + 4, first[4:8])
    raw.write_at(_FIRST_RECORD + step + 4, second[4:8])
    assert encrypted(memory).open("f.secret").read_at(0, 300) == bytes(200) + b"c" * 100


def test_a_record_of_another_file_does_not_open() -> None:
    memory = MemoryVfs()
    vfs = encrypted(memory)
    for name in ("a.secret", "b.secret"):
        vfs.open(name, create=True).write_at(0, name.encode() * 20)
    memory.open("a.secret").write_at(_FIRST_RECORD, all_of(memory.open("b.secret"))[_FIRST_RECORD:])
    assert all_of(vfs.open("a.secret")) == bytes(160)


def test_a_block_that_is_gone_leaves_zeros_and_the_others_where_they_were() -> None:
    plain = bytes(range(1, 256)) * 1_200
    memory = MemoryVfs()
    raw = written(memory, plain)
    raw.write_at(form.AREA_BYTES + form.BLOCK_BYTES, bytes(2 * form.BLOCK_BYTES))
    begin, end = form.PLAIN_BYTES_MAX, 3 * form.PLAIN_BYTES_MAX
    file = encrypted(memory).open("f.secret")
    assert all_of(file) == plain[:begin] + bytes(end - begin) + plain[end:]
    assert file.read_at(begin + 5, 10) == bytes(10)
    assert file.read_at(end - 5, 10) == bytes(5) + plain[end : end + 5]


def test_a_cut_in_the_middle_of_a_record_writes_over_nothing() -> None:
    memory = MemoryVfs()
    raw = written(memory, b"a" * 1_000, b"b" * 1_000)
    before = all_of(raw)
    file = encrypted(memory).open("f.secret")
    file.truncate(1_400)
    assert all_of(raw)[: len(before)] == before
    file.write_at(1_400, b"c" * 50)
    assert all_of(encrypted(memory).open("f.secret")) == b"a" * 1_000 + b"b" * 400 + b"c" * 50


def test_what_was_cut_off_can_be_cut_further() -> None:
    memory = MemoryVfs()
    written(memory, b"a" * 1_000)
    file = encrypted(memory).open("f.secret")
    for length in (900, 400, 399):
        file.truncate(length)
        assert all_of(encrypted(memory).open("f.secret")) == b"a" * length


@pytest.mark.parametrize("rest", [100, 60_000, form.PLAIN_BYTES_MAX - 120, form.PLAIN_BYTES_MAX - 100, 70_000])
@pytest.mark.parametrize("more", [0, 100])
@pytest.mark.parametrize("cuts", [(100,), (150, 100), (160, 130, 100)])
def test_no_flipped_bit_brings_back_what_was_cut_off(rest: int, more: int, cuts: tuple[int, ...]) -> None:
    """Neither in the record of the cut nor elsewhere, whether or not something was written since."""
    memory = MemoryVfs()
    file = encrypted(memory).open("f.secret", create=True)
    file.write_at(0, b"a" * 100 + b"b" * rest)  # as a follower gets it: one write
    for length in cuts:
        file.truncate(length)
    file.write_at(100, b"c" * more)
    wanted = b"a" * 100 + b"c" * more
    raw = memory.open("f.secret")
    whole = all_of(raw)
    assert all_of(encrypted(memory).open("f.secret")) == wanted
    # What was cut off is not looked at: it is most of the file.
    near = [place for place in range(form.AREA_BYTES, len(whole)) if whole[place]]
    record = range(form.AREA_BYTES + 40, form.AREA_BYTES + rest)
    places = [place for place in near if place not in record or place % 997 == 0]
    assert len(places) > 36
    for place in places:
        raw.write_at(place, bytes([whole[place] ^ 0x10]))
        found = encrypted(memory).open("f.secret").read_at(0, 200 + rest)
        assert b"b" not in found, place
        assert all(one in (other, 0) for one, other in zip(found, wanted, strict=False)), place
        raw.write_at(place, whole[place : place + 1])


def test_what_was_cut_off_does_not_come_back_while_more_is_cut_off() -> None:
    memory = MemoryVfs()
    file = encrypted(memory).open("f.secret", create=True)
    file.write_at(0, b"a" * 100 + b"b" * 100)
    file.truncate(100)
    file.sync()
    memory.sync_dir("")
    seen: set[bytes] = set()

    def crash(_operation: FileOperation) -> None:
        for _ in range(20):
            found = all_of(encrypted(memory.crash_clone(Keep.SUBSET, random)).open("f.secret"))
            seen.add(found.rstrip(b"\0"))

    random = Random(3)
    encrypted(FaultyVfs(memory, watcher=crash)).open("f.secret").truncate(50)
    crash(FileOperation(FileOperationKind.WRITE, "f.secret", 0))
    assert seen == {b"a" * 50, b"a" * 100}


def test_a_write_that_found_no_room_is_cut_back() -> None:
    memory = MemoryVfs()
    faulty = FaultyVfs(memory)
    file = encrypted(faulty).open("f.secret", create=True)
    file.write_at(0, b"a" * 500)
    faulty.plan = nth(0, FileFault(errno.ENOSPC, 30), FileOperationKind.WRITE)
    with pytest.raises(OSError, match="No space"):
        file.write_at(500, b"b" * 500)
    file.truncate(500)
    file.write_at(500, b"c" * 500)
    assert all_of(encrypted(memory).open("f.secret")) == b"a" * 500 + b"c" * 500


def test_a_header_that_found_no_room_is_written_with_the_next_try() -> None:
    memory = MemoryVfs()
    faulty = FaultyVfs(memory, nth(0, FileFault(errno.ENOSPC, 30), FileOperationKind.WRITE))
    file = encrypted(faulty).open("f.secret", create=True)
    with pytest.raises(OSError, match="No space"):
        file.write_at(0, b"a")
    file.truncate(0)
    file.write_at(0, b"b")
    assert all_of(encrypted(memory).open("f.secret")) == b"b"


def test_who_reads_a_file_that_is_new_sees_what_comes() -> None:
    memory = MemoryVfs()
    vfs = encrypted(memory)
    writer = vfs.open("f.secret", create=True)
    reader = vfs.open("f.secret", read_only=True)
    assert reader.read_at(0, 10) == b""
    writer.write_at(0, b"news")
    assert reader.read_at(0, 10) == b"news"


def test_a_million_records_are_opened_at_once() -> None:
    """By reading the last block, and none of the others."""
    memory = MemoryVfs()
    written(memory, *[b"m" * 900] * 2_000)
    watched = FaultyVfs(memory)
    read = []
    watched.watcher = lambda operation: (
        read.append(operation.length) if operation.kind is FileOperationKind.READ else None
    )
    file = encrypted(watched).open("f.secret")
    assert file.size() == 1_800_000
    assert sum(read) < 2 * form.BLOCK_BYTES
    read.clear()
    assert file.read_at(900_000, 900) == b"m" * 900
    assert sum(read) < 2 * form.BLOCK_BYTES


# Keys


def test_without_its_key_a_file_is_not_opened() -> None:
    written(memory := MemoryVfs(), b"a", keys=encryption_keys("old"))
    with pytest.raises(KeyMissingError, match="encrypted with the key 'old', which is not among the keys here"):
        encrypted(memory, encryption_keys("new")).open("f.secret")


def test_another_key_of_the_same_id_is_told_from_damage() -> None:
    written(memory := MemoryVfs(), b"a")
    with pytest.raises(KeyMissingError, match="'first' that differs from the key of that id here"):
        encrypted(memory, EncryptionKeys([("first", b"?" * 32)])).open("f.secret")


def test_new_files_take_the_first_key_and_old_ones_stay_readable() -> None:
    memory = MemoryVfs()
    vfs = encrypted(memory, encryption_keys("old"))
    vfs.open("a.secret", create=True).write_at(0, b"a")
    vfs.keys.replace(encryption_keys("new", "old"))
    vfs.open("b.secret", create=True).write_at(0, b"b")
    assert [key_ids(memory, name) for name in ("a.secret", "b.secret")] == [("old",), ("new",)]
    assert all_of(vfs.open("a.secret")) == b"a"


def test_keys_that_are_not_among_the_new_ones_stay_for_the_files_that_need_them() -> None:
    memory = MemoryVfs()
    vfs = encrypted(memory, encryption_keys("old"))
    vfs.open("a.secret", create=True).write_at(0, b"a")
    assert vfs.keys.replace(encryption_keys("new")) == ("old",)
    vfs.open("b.secret", create=True).write_at(0, b"b")
    assert (vfs.keys.current_id, vfs.keys.ids) == ("new", ("new", "old"))
    assert key_ids(memory, "b.secret") == ("new",)
    assert all_of(vfs.open("a.secret")) == b"a"
    assert vfs.keys.replace(encryption_keys("newer", "new")) == ("old",)
    assert vfs.keys.replace(encryption_keys("newer", "old")) == ("new",)


def test_another_key_under_an_id_that_is_in_use_changes_nothing() -> None:
    keys = encryption_keys("old")
    with pytest.raises(KeyMistakeError, match="'old' is another one than before"):
        keys.replace(EncryptionKeys([("new", b"?" * 32), ("old", b"!" * 32)]))
    assert (keys.ids, keys.key("old", "")) == (("old",), encryption_keys("old").key("old", ""))


def test_a_file_is_wrapped_anew_and_the_old_key_can_go() -> None:
    raw = written(memory := MemoryVfs(), b"a" * 100, keys=encryption_keys("old"))
    records = all_of(raw)[form.AREA_BYTES :]
    reader = encrypted(memory, encryption_keys("old")).open("f.secret")
    keys = encryption_keys("new", "old")
    assert rewrap(memory, "f.secret", keys, Random(1).randbytes)
    assert not rewrap(memory, "f.secret", keys, Random(1).randbytes)
    assert key_ids(memory, "f.secret") == ("new",)
    assert all_of(raw)[form.AREA_BYTES :] == records
    assert all_of(encrypted(memory, encryption_keys("new")).open("f.secret")) == b"a" * 100 == all_of(reader)
    with pytest.raises(KeyMissingError):
        encrypted(memory, encryption_keys("old")).open("f.secret")


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_while_it_is_wrapped_anew_leaves_it_readable(seed: int) -> None:
    memory = MemoryVfs()
    written(memory, b"a" * 100, keys=encryption_keys("old")).sync()
    memory.sync_dir("")
    keys = encryption_keys("new", "old")
    random = Random(seed)
    clones: list[MemoryVfs] = []

    def crash(_operation: object) -> None:
        clones.append(memory.crash_clone(Keep.SUBSET, random))

    rewrap(FaultyVfs(memory, watcher=crash), "f.secret", keys, random.randbytes)
    assert len(clones) > 4
    for clone in clones:
        assert all_of(encrypted(clone, keys).open("f.secret")) == b"a" * 100
        rewrap(clone, "f.secret", keys, random.randbytes)
        assert all_of(encrypted(clone, encryption_keys("new")).open("f.secret")) == b"a" * 100


def test_one_copy_of_the_header_is_enough_and_is_mended_with_the_next_key() -> None:
    raw = written(memory := MemoryVfs(), b"a" * 100, keys=encryption_keys("old"))
    raw.write_at(0, bytes(form.SLOT_STEP_BYTES))
    assert all_of(encrypted(memory, encryption_keys("old")).open("f.secret")) == b"a" * 100
    assert rewrap(memory, "f.secret", encryption_keys("old"), Random(1).randbytes)
    raw.write_at(form.SLOT_STEP_BYTES, bytes(form.SLOT_STEP_BYTES))
    assert all_of(encrypted(memory, encryption_keys("old")).open("f.secret")) == b"a" * 100


def test_a_file_that_has_lost_its_header_is_zeros_until_it_is_begun_anew() -> None:
    raw = written(memory := MemoryVfs(), b"a" * 100)
    raw.write_at(0, bytes(form.AREA_BYTES))
    file = encrypted(memory).open("f.secret")
    assert not any(all_of(file))
    assert file.size() >= 100
    file.truncate(0)
    file.write_at(0, b"new")
    assert all_of(encrypted(memory).open("f.secret")) == b"new"


def test_a_later_format_is_not_taken_for_damage() -> None:
    raw = written(memory := MemoryVfs(), b"a")
    slot = bytearray(raw.read_at(0, 157))
    slot[6] = 2
    slot[-4:] = crc32c(bytes(slot[:-4])).to_bytes(4, "little")
    raw.write_at(0, slot)
    with pytest.raises(KeyMissingError, match="format 2"):
        encrypted(memory).open("f.secret")


def test_keys_are_shown_nowhere() -> None:
    keys = encryption_keys()
    opener = form.new_opener(Random(1).randbytes)
    for secret, shown in ((keys.key("first", ""), repr(keys)), (opener.data_key, repr(opener))):
        assert repr(secret)[2:-1] not in shown


def test_a_file_that_is_cut_while_it_is_read_ends_there_or_reads_as_zeros() -> None:
    """As a reader's whose log is truncated meanwhile: it looks at the log again."""
    for calls in range(1, 12):
        memory = MemoryVfs()
        written(memory, b"a" * 900, *[b"b" * 900] * 200)
        left = [calls]

        def cut(operation: FileOperation, memory: MemoryVfs = memory, left: list[int] = left) -> None:
            left[0] -= operation.kind is FileOperationKind.READ
            if not left[0]:
                memory.open("f.secret").truncate(form.AREA_BYTES + 500)

        reader = encrypted(FaultyVfs(memory, watcher=cut)).open("f.secret", read_only=True)
        found = reader.read_at(150_000, 900)
        assert set(found) <= {0, ord("b")}


@pytest.mark.parametrize("starts_anew", [False, True])
def test_what_is_written_again_after_a_sync_that_failed_is_there_with_the_header_that_it_needs(
    starts_anew: bool,
) -> None:
    """What a sync that fails was to write may be given up, and stays readable: until the power goes."""
    memory = MemoryVfs()
    file = encrypted(memory).open("f.secret", create=True)
    memory.sync_dir("")
    file.write_at(0, rows := b"rows" * 300)
    memory.fail_sync("f.secret")
    if starts_anew:
        file.close()
        file = encrypted(memory).open("f.secret")
    file.write_at(0, rows)
    file.sync()
    after = memory.crash_clone(Keep.SYNCED)
    assert all_of(encrypted(after).open("f.secret")) == rows


@pytest.mark.parametrize("length", [0, 700, form.PLAIN_BYTES_MAX])
def test_blocks_that_were_cut_off_do_not_come_back_among_those_in_their_places(length: int) -> None:
    """Whatever a crash keeps of what was written since: a cut is on the disk before anything follows it."""
    memory = MemoryVfs()
    file = encrypted(memory).open("f.secret", create=True)
    file.write_at(0, b"r" * length)
    end = memory.open("f.secret").size()
    file.write_at(length, b"behind" * 50_000)
    file.sync()
    memory.sync_dir("")
    file.truncate(length)
    assert memory.crash_clone(Keep.SYNCED).open("f.secret").size() == end


@pytest.mark.parametrize("deeper", [0, 10_000])
def test_a_cut_that_only_a_block_tells_holds_until_the_next_one_does(deeper: int) -> None:
    """The record that is cut goes up to the end of its block: there is no room in there to say so."""
    memory = MemoryVfs()
    file = encrypted(memory).open("f.secret", create=True)
    memory.sync_dir("")
    file.write_at(0, rows := Random(1).randbytes(200_000))
    file.truncate(60_000)
    file.sync()
    clones: list[MemoryVfs] = []
    random = Random(2)

    def crash(_operation: FileOperation) -> None:
        clones.append(memory.crash_clone(Keep.SYNCED))
        clones.extend(memory.crash_clone(Keep.SUBSET, random) for _ in range(4))

    watched = encrypted(FaultyVfs(memory, watcher=crash)).open("f.secret")
    watched.truncate(60_000 - deeper)
    watched.sync()
    clones.append(memory.crash_clone(Keep.SYNCED))
    ends = set()
    for clone in clones:
        found = all_of(encrypted(clone).open("f.secret"))
        # Zeros may lie behind it: of what was being written.
        end = next(end for end in (60_000, 60_000 - deeper) if found[:end] == rows[:end])
        assert not any(found[end:])
        ends.add(end)
    assert ends == {60_000, 60_000 - deeper}
    assert all_of(encrypted(clones[-1]).open("f.secret")) == rows[: 60_000 - deeper]


def test_a_cut_whose_record_is_not_written_is_made_again() -> None:
    memory = MemoryVfs()
    faulty = FaultyVfs(memory)
    file = encrypted(faulty).open("f.secret", create=True)
    file.write_at(0, rows := Random(1).randbytes(3_000))
    faulty.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE)
    with pytest.raises(OSError, match="space"):
        file.truncate(1_000)
    assert all_of(file) == rows
    file.truncate(1_000)
    assert all_of(file) == rows[:1_000] == all_of(encrypted(memory).open("f.secret"))


def test_a_new_file_that_is_made_empty_waits_for_no_disk() -> None:
    """A log begins its segments so, on the event loop."""
    kinds = []
    watched = FaultyVfs(MemoryVfs(), watcher=lambda operation: kinds.append(operation.kind))
    encrypted(watched).open("f.secret", create=True).truncate(0)
    assert FileOperationKind.SYNC not in kinds


@pytest.mark.parametrize("left", range(1, form.BLOCK_HEADER_BYTES))
def test_the_begin_of_a_block_that_a_crash_has_left_is_made_whole_by_nobody(left: int) -> None:
    """What it lacks are zeros, as what fills the block up would be: a cut that was given up would count."""
    memory = MemoryVfs()
    file = encrypted(memory).open("f.secret", create=True)
    file.write_at(0, rows := Random(1).randbytes(form.PLAIN_BYTES_MAX))
    end = memory.open("f.secret").size()
    file.truncate(50_000)
    raw = memory.open("f.secret")
    raw.truncate(end + left)
    file = encrypted(memory).open("f.secret")
    assert file.size() == len(rows) + left
    file.write_at(file.size(), b"more")
    assert all_of(encrypted(memory).open("f.secret")) == rows + bytes(left) + b"more"


@pytest.mark.parametrize("length", [0, 700])
def test_a_cut_whose_sync_fails_leaves_a_file_that_can_be_gone_on_with(length: int) -> None:
    memory = MemoryVfs()
    faulty = FaultyVfs(memory)
    file = encrypted(faulty).open("f.secret", create=True)
    file.write_at(0, b"r" * 700)
    file.write_at(700, b"behind" * 50_000)
    faulty.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC)
    with pytest.raises(OSError, match="error"):
        file.truncate(length)
    assert file.size() == encrypted(memory).open("f.secret").size()
    file.write_at(file.size(), b"more")
    assert all_of(file) == b"r" * length + b"more" == all_of(encrypted(memory).open("f.secret"))


def test_what_comes_behind_the_zeros_of_a_file_without_its_header_is_found() -> None:
    """They count for as many as there are bytes of blocks: a block behind them begins later than another can."""
    memory = MemoryVfs()
    raw = memory.open("f.secret", create=True)
    raw.write_at(0, bytes(form.AREA_BYTES + 3 * form.BLOCK_BYTES))
    file = encrypted(memory).open("f.secret")
    size = file.size()
    file.write_at(size, b"more")
    again = encrypted(memory).open("f.secret")
    assert again.size() == file.size() == size + 4
    assert again.read_at(size - 1, 9) == b"\0more"


@pytest.mark.parametrize("has_records", [True, False])
def test_a_file_that_is_begun_again_after_a_failed_sync_keeps_its_header(has_records: bool) -> None:
    """The failed sync has lost the header, which can still be read: the next one must write it."""
    memory = MemoryVfs()
    file = encrypted(memory).open("f.secret", create=True)
    file.write_at(0, b"before")
    if not has_records:
        memory.open("f.secret").truncate(form.AREA_BYTES)
    memory.fail_sync("f.secret")
    file.close()
    memory.sync_dir("")

    again = encrypted(memory).open("f.secret", create=True)
    again.truncate(0)
    again.write_at(0, b"after")
    again.sync()
    assert all_of(encrypted(memory.crash_clone(Keep.SYNCED)).open("f.secret")) == b"after"
