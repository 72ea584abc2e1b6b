"""The log against a list, through crashes, damage to derived files, a clock that jumps, retention, and what a follower
does: append what was fetched, truncate, begin anew, begin later. Meanwhile sealed segments are written anew.
"""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.errors import RemoteError
from penstock.commitlog import Cleaning, Flush, LogConfig, LogCutError, LogState, LogView, Retention
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import examples
from tests.logs import (
    DIRECTORY,
    Message,
    append,
    encrypted_logs,
    give_up_before,
    make_batch,
    messages_in,
    open_log,
    read_batches,
    read_slices,
    run,
)

CONFIGS = st.builds(
    LogConfig,
    segment_bytes=st.sampled_from([4096, 6000, 20_000]),
    segment_age_us=st.sampled_from([None, 5_000_000]),
    max_age_us=st.sampled_from([None, None, 20_000_000]),
    max_messages=st.sampled_from([None, None, 15]),
    max_bytes=st.sampled_from([None, None, 9000]),
)


class LogMachine(RuleBasedStateMachine):
    """`messages` holds all that was ever appended and not lost; `durable_end` what was acked as flushed."""

    @initialize(config=CONFIGS)
    def start(self, config: LogConfig) -> None:
        self.vfs = MemoryVfs()
        self.config = config
        self.now_us = 1_000_000_000
        self.messages: list[Message] = []
        self.log_start = 0
        self.durable_start = 0
        self.durable_end = 0
        self.flush: Flush | None = None
        self.retention: Retention | None = None
        self.kept_view: LogView | None = None
        self.is_view_cut = False
        self.cleaning: Cleaning | None = None
        self.log = open_log(self.vfs, config, now_us=self.now_us)

    @rule(rows=st.integers(1, 5), step_us=st.integers(0, 3_000_000), size_bytes=st.sampled_from([0, 40, 700, 5000]))
    def append(self, rows: int, step_us: int, size_bytes: int) -> None:
        self.now_us += step_us
        if not self.log.lineage or self.log.lineage[-1].leader_epoch != self.log.leader_epoch:
            self.log.start_epoch(self.log.leader_epoch + 1)
        self.messages += append(self.log, rows, self.now_us, size_bytes=size_bytes)

    @rule()
    def start_epoch(self) -> None:
        self.log.start_epoch(self.log.leader_epoch + 1)

    @rule(batches=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 10**6), st.integers(0, 1)), max_size=5))
    def append_fetched(self, batches: list[tuple[int, int, int]]) -> None:
        data, offset = b"", self.log.log_end
        at_us, epoch = self.log.last_timestamp_us, max(1, self.log.last_epoch)
        for rows, step_us, epochs in batches:
            at_us, epoch = at_us + step_us, epoch + epochs
            data += make_batch(offset, rows, at_us, size_bytes=rows * 150, leader_epoch=epoch)[0]
            offset += rows
        appended = self.log.append_fetched(data)
        assert (appended.log_end, appended.batches, appended.size_bytes) == (offset, len(batches), len(data))
        self.messages += messages_in(data)

    @precondition(lambda self: self.flush is None and not self.log.is_disposing)
    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        log = self.log
        end = log.log_start + round((log.log_end - log.log_start) * part)
        cut = log.view().batch_at(end)[1].base_offset if end < log.log_end else log.log_end
        if cut == log.log_end:
            assert log.truncate(end) is None
            return
        run(log, log.truncate(end))
        assert log.log_end == log.flushed_end == cut <= end
        del self.messages[cut:]
        self._was_cut(min(self.log_start, cut), cut)

    @precondition(lambda self: self.flush is None and not self.log.is_disposing)
    @rule(step=st.integers(-20, 20))
    def reset(self, step: int) -> None:
        start = max(0, self.log.log_end + step)
        run(self.log, self.log.reset(start))
        # The messages before it are nobody's.
        self.messages = [(offset, 0, b"") for offset in range(start)]
        self._was_cut(start, start)

    def _was_cut(self, log_start: int, log_end: int) -> None:
        assert log_start == log_end or self.log.last_timestamp_us == self.messages[-1][1]
        self.retention = None
        self.is_view_cut = True
        self.log_start = self.log.log_start
        assert self.log_start == log_start
        self.durable_start = min(self.durable_start, log_start)
        self.durable_end = log_end

    @rule(step=st.integers(-3, 10))
    def raise_start(self, step: int) -> None:
        wanted = self.log_start + step
        self.log.raise_start(wanted)
        assert self.log.log_start == max(self.log_start, min(wanted, self.log.flushed_end))
        self.log_start = self.log.log_start

    @rule(step=st.integers(0, 20))
    def note_committed(self, step: int) -> None:
        before = self.log.committed_end
        self.log.note_committed(before + step)
        assert self.log.committed_end == min(before + step, self.log.log_end)

    @precondition(lambda self: self.cleaning is None)
    @rule()
    def begin_cleaning(self) -> None:
        self.log.note_committed(self.log.flushed_end)
        self.cleaning = self.log.clean(0)

    @precondition(lambda self: self.cleaning is not None)
    @rule()
    def go_on_cleaning(self) -> None:
        assert self.cleaning is not None
        self.cleaning.run()

    @precondition(lambda self: self.cleaning is not None)
    @rule()
    def end_cleaning(self) -> None:
        cleaning, self.cleaning = self.cleaning, None
        assert cleaning is not None
        while not cleaning.is_done:
            cleaning.run()
        size_bytes = self.log.size_bytes
        if self.log.cleaned(cleaning, 0):
            assert self.log.size_bytes < size_bytes
            assert cleaning.replacement in self.log.view().segments

    @rule(ends=st.booleans())
    def dispose(self, ends: bool) -> None:
        disposal = self.log.dispose()
        if disposal is not None and ends:
            disposal.run()
            self.log.disposed()

    @rule()
    def clock_steps_back(self) -> None:
        self.now_us -= 3_600_000_000

    @precondition(lambda self: self.flush is None)
    @rule()
    def begin_flush(self) -> None:
        self.flush = self.log.flush()
        assert self.flush is None or self.log.flush() is None, "one flush at a time"

    @precondition(lambda self: self.flush is not None)
    @rule()
    def end_flush(self) -> None:
        flush, self.flush = self.flush, None
        assert flush is not None
        flush.run()
        self.log.flushed(flush)
        assert self.log.flushed_end == flush.end
        self.durable_end = flush.end

    @rule()
    def note_flushed(self) -> None:
        self.log.note_flushed()

    @precondition(lambda self: self.retention is None)
    @rule(step_us=st.integers(0, 10_000_000))
    def tick(self, step_us: int) -> None:
        self.now_us += step_us
        self.retention = self.log.tick(self.now_us)

    @precondition(lambda self: self.retention is not None)
    @rule()
    def look_up(self) -> None:
        assert self.retention is not None
        self.retention.run()

    @precondition(lambda self: self.retention is not None)
    @rule(run=st.booleans())
    def apply_retention(self, run: bool) -> None:
        retention, self.retention = self.retention, None
        assert retention is not None
        removal = self.log.apply_retention(retention)
        assert self.log.log_start >= self.log_start
        self.log_start = self.log.log_start
        if removal is not None and run:
            removal.run()
            self.durable_start = self.log_start
        elif removal is not None:
            self.log.removal_failed(removal)

    @precondition(lambda self: self.retention is None)
    @rule(part=st.floats(0, 1))
    def give_up_before(self, part: float) -> None:
        offset = int(self.log.log_end * part)
        removal = give_up_before(self.log, offset)
        assert self.log.log_start == max(self.log_start, min(offset, self.log.flushed_end))
        self.log_start = self.log.log_start
        if removal is not None:
            removal.run()
            self.durable_start = self.log_start

    @rule(config=CONFIGS)
    def configure(self, config: LogConfig) -> None:
        self.config = config
        self.log.configure(config)

    @rule()
    def keep_view(self) -> None:
        self.kept_view = self.log.view()
        self.is_view_cut = False

    @precondition(lambda self: self.kept_view is not None)
    @rule()
    def read_kept_view(self) -> None:
        view = self.kept_view
        assert view is not None
        refused: RemoteError | FileNotFoundError | None = None
        found: list[Message] = []
        try:
            found = read_slices(self.vfs, view)
        except LogCutError:
            assert self.is_view_cut
            return
        except (RemoteError, FileNotFoundError) as error:
            # The latter: the file of a slice is opened after retention has removed it; the broker asks again.
            refused = error
        if self.is_view_cut:
            assert refused is None or isinstance(refused, FileNotFoundError) or self.log_start > view.log_start
            return
        if refused is None:
            assert found == self.messages[view.log_start : view.log_end]
            return
        assert self.log_start > view.log_start
        if isinstance(refused, RemoteError):
            assert refused.code == "offset_out_of_range"
            assert refused.details["log_start"] <= self.log_start

    @rule(part=st.floats(0, 1), bytes_max=st.integers(1, 20_000))
    def read_from(self, part: float, bytes_max: int) -> None:
        view = self.log.view()
        start = view.log_start + int((view.log_end - view.log_start) * part)
        assert read_slices(self.vfs, view, start, bytes_max=bytes_max) == self.messages[start:]

    @rule(first=st.floats(0, 1), second=st.floats(0, 1), reverse=st.booleans())
    def read_range(self, first: float, second: float, reverse: bool) -> None:
        view = self.log.view()
        width = view.log_end - view.log_start
        start, end = sorted(view.log_start + int(width * part) for part in (first, second))
        assert read_batches(view, start, end, reverse=reverse) == self.messages[start:end]

    @rule(part=st.floats(0, 1), shift_us=st.integers(-1, 1))
    def find_time(self, part: float, shift_us: int) -> None:
        view = self.log.view()
        if not self.messages:
            assert view.offset_at(0, end=view.log_end) == view.log_end
            return
        timestamp_us = self.messages[int((len(self.messages) - 1) * part)][1] + shift_us
        wanted = next((m[0] for m in self.messages[view.log_start :] if m[1] >= timestamp_us), view.log_end)
        assert view.offset_at(timestamp_us, end=view.log_end) == wanted

    @rule(seed=st.integers(0, 2**32), how=st.sampled_from(["remove", "short", "flip", "zeros", "foreign"]))
    def damage_an_index(self, seed: int, how: str) -> None:
        random = Random(seed)
        names = [name for name in self.vfs.list(DIRECTORY) if name.endswith(".index")]
        if not names:
            return
        path = f"{DIRECTORY}/{random.choice(names)}"
        if how == "remove":
            self.vfs.remove(path)
            return
        file = self.vfs.open(path)
        size = file.size()
        if how == "short":
            file.truncate(random.randrange(size + 1))
        elif how == "zeros":
            file.write_at(0, bytes(size))
        elif size:
            place = random.randrange(size)
            new = random.randbytes(1) if how == "foreign" else bytes([file.read_at(place, 1)[0] ^ 1 << seed % 8])
            file.write_at(place, new)

    @precondition(lambda self: self.flush is None)
    @rule(
        damage=st.sampled_from(["none", "none", "one slot", "empty", "garbage", "missing"]), seed=st.integers(0, 2**32)
    )
    def reopen(self, damage: str, seed: int) -> None:
        self.log.close()
        self.durable_end, self.durable_start = self.log.log_end, self.log_start
        path = f"{DIRECTORY}/checkpoint"
        file = self.vfs.open(path)
        if damage == "missing":
            self.vfs.remove(path)
        elif damage == "empty":
            file.truncate(0)
        elif damage == "garbage":
            file.write_at(0, Random(seed).randbytes(file.size()))
        elif damage == "one slot":
            file.write_at(seed % 2 * 4096 + seed % 96, b"\xa5")
        if damage != "none":
            # The exact log_start is gone with it: it may go back, to what is still there.
            self.durable_start = 0
        self._open(self.vfs)
        assert self.log.log_end == len(self.messages)

    @rule(keep=st.sampled_from(Keep), seed=st.integers(0, 2**32))
    def crash(self, keep: Keep, seed: int) -> None:
        vfs = self.vfs.crash_clone(keep, Random(seed) if keep is Keep.SUBSET else None)
        self.flush = None
        self._open(vfs)
        assert self.durable_end <= self.log.log_end <= len(self.messages)
        if keep is Keep.ALL:
            assert self.log.log_end == len(self.messages)
        del self.messages[self.log.log_end :]
        self.durable_end = self.log.log_end

    def _open(self, vfs: MemoryVfs) -> None:
        self.retention = None
        self.kept_view = None
        self.cleaning = None
        self.vfs = vfs
        self.log = open_log(vfs, self.config, now_us=self.now_us)
        again = open_log(vfs.crash_clone(), self.config, now_us=self.now_us)
        assert (again.log_start, again.log_end) == (self.log.log_start, self.log.log_end)
        assert (again.lineage, again.committed_end) == (self.log.lineage, self.log.committed_end)
        assert self.log.state is again.state is LogState.WRITABLE, (self.log.damage, again.damage)
        assert self.durable_start <= self.log.log_start <= max(self.log_start, self._first_base())
        self.log_start = self.durable_start = self.log.log_start

    def _first_base(self) -> int:
        return min(int(name[:20]) for name in self.vfs.list(DIRECTORY) if name.endswith(".arrows"))

    @invariant()
    def agrees(self) -> None:
        log = self.log
        assert log.state is LogState.WRITABLE, log.damage
        assert (log.log_start, log.log_end) == (self.log_start, len(self.messages))
        assert log.log_start <= log.flushed_end <= log.log_end
        assert log.log_start <= log.committed_end <= log.log_end
        assert not any(entry.start_offset > log.log_end for entry in log.lineage)
        for header, _ in log.view().batches(log.log_start, log.log_end):
            assert log.epoch_end(header.leader_epoch).leader_epoch == header.leader_epoch
            assert log.epoch_end(header.leader_epoch).start_offset >= header.end_offset
        # Without a checkpoint the time of messages that are removed is forgotten.
        assert log.last_timestamp_us >= (self.messages[-1][1] if log.log_start < log.log_end else 0)
        view = log.view()
        assert read_slices(self.vfs, view, bytes_max=10_000) == self.messages[log.log_start :]


LogMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=100, deadline=None)
TestLogAgainstAList = LogMachine.TestCase


class TestEncryptedLogAgainstAList(LogMachine.TestCase):  # type: ignore[misc, valid-type]
    def runTest(self) -> None:
        with encrypted_logs():
            super().runTest()
