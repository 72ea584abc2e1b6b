"""The future of a message that `publish_nowait` of the blocking client has sent.

Rules: a caller can do with it all that a `concurrent.futures.Future` does, including `wait`, `as_completed` and
`asyncio.wrap_future`. It cannot be cancelled: the message is being sent. It has a condition only once a caller waits
for it or adds a callback, because a condition costs more than the rest of a future, and most futures need none.

Theory: one lock for all futures orders "it is done" and "it has a condition". A future that is done without a condition
does not change any more, so a condition that is made later finds it done. A future with a condition becomes done under
that condition, as in the standard library.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from penstock.client.blocking.slots import Slots
from penstock.client.values import PubAck

_RUNNING = "RUNNING"
_FINISHED = "FINISHED"

_making = threading.Lock()
if hasattr(os, "register_at_fork"):  # another thread may hold it while this one forks; the child has no such thread
    os.register_at_fork(after_in_child=_making._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001 (no public name)


class PublishFuture(concurrent.futures.Future[PubAck | None]):
    """The future of an ack. It gives back the slot of its message when it is done."""

    token = 0  # of the message; not used, as it cannot be cancelled
    keeps_slot = False  # it ends while its message is queued: else the queue would have no limit
    _state = _RUNNING
    _result: PubAck | None = None
    _exception: BaseException | None = None
    _made: threading.Condition | None = None
    _is_seen = False  # a caller asked for its outcome, or will get it

    def __init__(self, slots: Slots) -> None:
        self.made_s = monotonic()
        self._slots = slots  # the standard library's `__init__` would make a condition

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # an attribute in the standard library
        if (made := self._made) is None:
            made = threading.Condition()  # not under the lock: what allocates may collect garbage
            waiters: list[Any] = []
            callbacks: list[Any] = []
            with _making:
                if self._made is None:
                    self._waiters, self._done_callbacks, self._made = waiters, callbacks, made
                made = self._made
        return made

    def done(self) -> bool:
        """Return True once it has the ack or an error."""
        return self._state == _FINISHED

    def result(self, timeout: float | None = None) -> PubAck | None:
        """Wait up to `timeout` seconds and return the ack, None if the message gets none. TimeoutError."""
        if self._state == _FINISHED and self._exception is None:
            return self._result
        try:
            return super().result(timeout)
        finally:
            self._is_seen = self._is_seen or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait up to `timeout` seconds and return the error, None if there is an ack. TimeoutError."""
        try:
            return self._exception if self._state == _FINISHED else super().exception(timeout)
        finally:
            self._is_seen = self._is_seen or self.done()

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[PubAck | None]], object]) -> None:
        """Call `fn` with this future once it is done; it is for `fn` to ask for the outcome."""
        self._is_seen = True
        super().add_done_callback(fn)

    @property
    def is_unseen(self) -> bool:
        """True if it has failed and no caller has asked for its outcome."""
        return self._exception is not None and not self._is_seen

    def set_result(self, result: PubAck | None) -> None:
        """End with the ack; None if the message gets none."""
        self._end(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """End with an error."""
        self._end(None, exception)

    def _end(self, result: PubAck | None, exception: BaseException | None) -> None:
        with _making:
            if is_alone := self._made is None and self._state == _RUNNING:
                self._result, self._exception = result, exception
                self._state = _FINISHED
        is_first = is_alone or not self.done()  # only one thread ends it
        try:
            if not is_alone and exception is None:
                super().set_result(result)
            elif not is_alone:
                super().set_exception(exception)
        finally:
            if is_first and not self.keeps_slot:  # also if a callback raises
                self._slots.give_back()

    def left_queue(self) -> None:
        """Its message is queued no more; if it ended in the queue, its slot is free now."""
        if self.keeps_slot:
            self.keeps_slot = False
            if self.done():
                self._slots.give_back()
