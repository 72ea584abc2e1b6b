"""A log that is appended to, committed, cleaned, cut and lost in crashes: what the properties of all cleaning share."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock.commitlog import CleanerTask, LogConfig, LogState
from penstock.vfs.memory import Keep, MemoryVfs
from tests.logs import finished, flush_and_note, open_log, run, save


class CleanedLog(RuleBasedStateMachine):
    """`rows`: all that was appended and not lost, by their offsets. Begin with `open`."""

    rows: list[Any]

    def open(self, config: LogConfig, now_us: int) -> None:
        """An empty log."""
        self.vfs = MemoryVfs()
        self.config = config
        self.now_us = now_us
        self.rows = []
        self.sequence = self.committed_end = 0
        self.task: CleanerTask | None = None
        self.log = open_log(self.vfs, config, now_us=now_us)
        self.log.start_epoch(1)

    @rule()
    def start_epoch(self) -> None:
        self.log.start_epoch(self.log.leader_epoch + 1)

    @rule()
    def commit(self) -> None:
        save(self.log)
        self.log.note_committed(self.log.log_end)
        self.committed_end = self.log.log_end

    @precondition(lambda self: self.task is None)
    @rule()
    def begin(self) -> None:
        self.task = self.log.clean(self.now_us)

    @precondition(lambda self: self.task is not None)
    @rule()
    def end(self) -> None:
        task, self.task = self.task, None
        self.log.cleaned(finished(task), self.now_us)  # type: ignore[type-var]

    @precondition(lambda self: not self.log.is_disposing)
    @rule()
    def dispose(self) -> None:
        if (task := self.log.dispose()) is not None:
            task.run()
            self.log.disposed()

    @precondition(lambda self: not self.log.is_disposing)
    @rule(part=st.floats(0, 1))
    def cut(self, part: float) -> None:
        """Another leader has not got the end of it."""
        wanted = self.committed_end + round((self.log.log_end - self.committed_end) * part)
        run(self.log, self.log.truncate(wanted))
        assert self.log.log_end >= self.committed_end
        del self.rows[self.log.log_end :]

    @rule(keep=st.sampled_from(list(Keep)), seed=st.integers(0, 1_000))
    def crash(self, keep: Keep, seed: int) -> None:
        end = self.log.flushed_end
        self.vfs = self.vfs.crash_clone(keep, Random(seed) if keep is Keep.SUBSET else None)
        self.task = None
        self.log = open_log(self.vfs, self.config, now_us=self.now_us)
        assert self.log.state is LogState.WRITABLE
        assert self.log.log_end >= end
        del self.rows[self.log.log_end :]
        flush_and_note(self.log)
        self.log.start_epoch(self.log.leader_epoch + 1)
