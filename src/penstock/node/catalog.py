"""The road of a metadata command: checked, journaled, synced, applied, answered.

Rules: nothing takes effect before it is on the disk. Commands are applied in the order of their index, and what one
comes to is decided when it is applied, not when it is asked for. A start is a command too; where the disk refuses even
that, nobody leads and everything can be read, until a later tick has found room for it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.metadata.apply import apply
from penstock.metadata.commands import Command, StartBroker
from penstock.metadata.image import ClusterImage, Outcome, PartitionState
from penstock.metadata.journal import Journal
from penstock.node.step import Lane, Outbox

Done = Callable[[Outcome | RemoteError], None]


class Catalog:
    """The journal and the image that it folds to. `start` first; `led` is called if this start is journaled later."""

    def __init__(self, journal: Journal, image: ClusterImage, outbox: Outbox, *, led: Callable[[], None]) -> None:
        self.image = image
        self.may_lead = False  # this start is journaled: every stream has a leader epoch of its own
        self._led = led
        self._journal = journal
        self._outbox = outbox
        self._proposed: deque[tuple[int, Command, Done]] = deque()
        self._flushing = self._starting = False

    def start(self, now_us: int) -> None:
        """Journal that the broker starts; blocking. OSError if that cannot be synced."""
        command = StartBroker(started_us=now_us)
        try:
            index = self._journal.append(command)
        except OperationalError as error:
            self._outbox.notice(f"{error}; streams can be read, and store nothing until there is room")
            return
        flush = self._journal.flush()
        flush.run()
        self._journal.flushed(flush)
        self.image, _ = apply(self.image, index, command)
        self.may_lead = True
        self._journal.keep_reserve()

    def tick(self, now_us: int) -> None:
        """Once a second: see that the journal keeps its reserve; try again what the disk refused to `start`."""
        self._journal.keep_reserve()
        if self.may_lead or self._starting:
            return
        command = StartBroker(started_us=now_us)
        with contextlib.suppress(OperationalError):  # the operator knows
            self._proposed.append((self._journal.append(command), command, self._started))
            self._starting = True
            self.flush()

    def _started(self, outcome: Outcome | RemoteError) -> None:
        self._starting = False
        if not isinstance(outcome, RemoteError):
            self.may_lead = True
            self._led()

    def epoch_to_lead(self, state: PartitionState) -> int:
        """The leader epoch under which this start writes to the partition."""
        return state.leader_epoch if self.may_lead else state.leader_epoch + 1

    def propose(self, command: Command, done: Done) -> None:
        """Journal `command`; `done` hears what it came to, once it is durable and applied."""
        try:
            index = self._journal.append(command)
        except RemoteError as error:
            done(error)
            return
        except OperationalError as error:
            done(RemoteError(ErrorCode.STORAGE_FAILED, str(error)))
            return
        self._proposed.append((index, command, done))
        self.flush()

    def flush(self) -> None:
        """Sync what is proposed, one sync at a time for all that came meanwhile."""
        if self._flushing or not self._proposed:
            return
        self._flushing = True
        flush = self._journal.flush()

        def done(error: Exception | None) -> None:
            self._flushing = False
            if error is not None:
                self._fail(error)
            else:
                self._journal.flushed(flush)
                self._apply_to(flush.index)
                self.flush()

        self._outbox.work(Lane.WRITE, flush.run, done)

    def _apply_to(self, last_index: int) -> None:
        while self._proposed and self._proposed[0][0] <= last_index:
            index, command, done = self._proposed.popleft()
            self.image, outcome = apply(self.image, index, command)
            done(outcome)

    def _fail(self, error: Exception) -> None:
        self._journal.flush_failed(error if isinstance(error, OSError) else OSError(str(error)))
        while self._proposed:
            done = self._proposed.popleft()[2]
            text = (
                f"the metadata journal cannot be synced ({error}); the change may or may not be there after a restart"
            )
            done(RemoteError(ErrorCode.STORAGE_FAILED, text))

    def stop(self, error: RemoteError) -> None:
        """Tell whose change is still on its way; give the journal's file back."""
        while self._proposed:
            self._proposed.popleft()[2](error)
        self._journal.close()
