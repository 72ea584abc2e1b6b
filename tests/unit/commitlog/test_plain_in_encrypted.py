"""A plain file in the place of one of an encrypted log is damage, whoever put it there: not read, not written, kept.

An index of subjects holds nothing of its own: it is made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.base.errors import RemoteError
from penstock.commitlog.verify.verifying import verify_log
from penstock.vfs.keys import ENCRYPTED_BEGIN, NoHeaderError
from penstock.vfs.memory import MemoryVfs
from tests.damage import content, flip, readable
from tests.logs import DIRECTORY, Message, append, as_logs_see, clean_all, encrypted_logs, open_log, save
from tests.property.test_mending import CONFIG, Donor, copied, grown, mend, rows_of
from tests.property.test_mending_limits import segments
from tests.unit.commitlog.test_subject_queries import INDEXED, filled, indexes, queries, scrub


@pytest.fixture(autouse=True)
def encrypted() -> Iterator[None]:
    with encrypted_logs():
        yield


def stopped() -> tuple[MemoryVfs, list[Message]]:
    """A log of some segments that was stopped, and its messages."""
    disk = MemoryVfs()
    log = open_log(disk)
    wanted = [message for number in range(60) for message in append(log, 1, number)]
    save(log)
    log.close()
    assert len(segments(disk)) > 2
    return disk, wanted


def make_plain(disk: MemoryVfs, path: str) -> bytes:
    """Put what the file holds there in plain: all CRCs fit. Gives the bytes."""
    with closing(as_logs_see(disk).open(path)) as file:
        plain = file.read_at(0, file.size())
    disk.remove(path)
    disk.open(path, create=True).write_at(0, plain)
    return plain


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_it_is_damage_and_stays_as_it_is(number: int, has_checkpoint: bool) -> None:
    disk, wanted = stopped()
    path = segments(disk)[number]
    forged = make_plain(disk, path)
    for name in () if has_checkpoint else ("checkpoint", *disk.list(DIRECTORY)):
        if name == "checkpoint" or name.endswith(".index"):
            disk.remove(f"{DIRECTORY}/{name}")
    (mistake,) = (one for one in verify_log(as_logs_see(disk), DIRECTORY).mistakes if one.file == path)
    assert (mistake.position, "it is not encrypted, and its stream is" in mistake.found) == (0, True)
    log = open_log(disk)
    damage = next(one for one in log.damage if one.file == path)
    assert (damage.position, "it is not encrypted, and its stream is" in damage.reason) == (0, True)
    assert damage.base_offset == int(path[-27:-7])
    with pytest.raises(Exception, match="is read_only"):
        append(log)
    found = readable(disk, log)
    assert 0 < len(found) < len(wanted)
    assert set(found) < set(wanted)
    assert not {message[0] for message in found} & set(range(damage.base_offset, damage.end_offset or 60))
    log.close()
    assert content(disk, path) == forged


def test_one_that_comes_while_the_log_is_open_is_not_read() -> None:
    disk, _ = stopped()
    log = open_log(disk)
    make_plain(disk, segments(disk)[0])
    with pytest.raises((OSError, RemoteError), match="it is not encrypted, and its stream is"):
        list(log.view().batches(0, 1))
    assert log.view().damage_from(segments(disk)[0], 0, "x") is not None
    log.close()


def test_one_that_has_the_name_of_the_next_segment_is_put_aside() -> None:
    disk, wanted = stopped()
    log = open_log(disk)
    before = segments(disk)
    paths = [f"{DIRECTORY}/{offset:020d}.arrows" for offset in range(60, 90)]
    for path in paths:
        disk.open(path, create=True).write_at(0, b"\xff\xff\xff\xff and more")
    for number in range(60, 90):
        wanted += append(log, 1, number)
    save(log)
    made = [path for path in paths if content(disk, path).startswith(ENCRYPTED_BEGIN)]
    assert made
    for path in made:
        assert content(disk, f"{path}.cut-0") == b"\xff\xff\xff\xff and more"
    for path in {*paths} - {*made}:
        disk.remove(path)
    assert readable(disk, log) == wanted
    log.close()
    assert before == segments(disk)[: len(before)]


@pytest.mark.parametrize("harm", ["plain", "both headers"])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_it_is_mended_from_a_replica_and_kept_aside(harm: str, number: int) -> None:
    disk, log, wanted = grown([2] * 60, [20])
    log.close()
    other_disk = copied(disk)
    other = open_log(other_disk, CONFIG)
    donor = Donor(other, other_disk, other.log_end, 3_000)
    path = segments(disk)[number]
    if harm == "plain":
        make_plain(disk, path)
    else:
        flip_header(disk, path)
    bad = content(disk, path)
    with pytest.raises(NoHeaderError):
        as_logs_see(disk).open(path)
    log = open_log(disk, CONFIG)
    assert log.damage
    mending = mend(log, donor)
    assert mending.ranges == 1
    log.close()
    mending.place()
    log = open_log(disk, CONFIG, must_exist=True)
    assert not log.damage
    wanted += append(log)
    assert rows_of(disk, log) == wanted
    log.close()
    other.close()
    assert content(disk, f"{path}.cut-0") == bad
    assert all(content(disk, one).startswith(ENCRYPTED_BEGIN) for one in segments(disk))


@pytest.mark.parametrize("harm", ["plain", "both headers"])
@pytest.mark.parametrize("found_by", ["query", "open query", "scrub", "indexing"])
def test_an_index_of_subjects_is_made_again(harm: str, found_by: str) -> None:
    disk = MemoryVfs()
    log = filled(disk, INDEXED)
    clean_all(log)
    if found_by == "open query":
        assert queries(log).last("own.0") == 1
    paths = [f"{DIRECTORY}/{name}" for name in indexes(disk)]
    assert len(paths) > 1
    for path in paths:
        if harm == "plain":
            make_plain(disk, path)
        else:
            flip_header(disk, path)
    if found_by == "scrub":
        assert [one.file for one in scrub(log).wrong_indexes] == paths
    elif found_by == "indexing":
        log.close()
        log = open_log(disk, INDEXED, must_exist=True)
        clean_all(log)
    assert [queries(log).last(f"own.{number}") for number in range(20)] == [3 * number + 1 for number in range(20)]
    for path in paths:
        with closing(as_logs_see(disk).open(path)) as file:
            assert file.size()
    assert scrub(log).wrong_indexes == []
    log.close()


def flip_header(disk: MemoryVfs, path: str) -> None:
    for position in (20 - 8_192, 4_096 + 20 - 8_192):  # `flip` counts from the first record
        flip(disk, path, position)
