"""Probes whether the disk accepts writes again after it refused one.

Rules: probing only happens while needed, DISK_SPACE_PROBE_MS after a refusal and again after each failure: a disk
thread writes and removes a file. A file left by a crash is overwritten by the next probe.
"""

from __future__ import annotations

import contextlib

from penstock.base import limits
from penstock.node.step import Lane, Outbox
from penstock.vfs import Vfs

ROOM_PATH = "room"
_INTERVAL_US = limits.DISK_SPACE_PROBE_MS * 1_000


class DiskSpaceProbe:
    """The probe of one disk."""

    def __init__(self, vfs: Vfs, outbox: Outbox) -> None:
        self._vfs = vfs
        self._outbox = outbox
        self.has_room = False  # a write has succeeded; `Replicas` clears it
        self._is_probing = False
        self.next_deadline_us: int | None = None  # elapsed time at which `tick` must run

    @property
    def is_needed(self) -> bool:
        """True since the disk refused a write, until a probe succeeds."""
        return self._is_probing or self.next_deadline_us is not None

    def lacks(self, now_us: int) -> None:
        """Schedule a probe, because the disk refused a write."""
        if self.next_deadline_us is None and not self._is_probing:
            self.next_deadline_us = now_us + _INTERVAL_US

    def tick(self, now_us: int) -> None:
        """Start the probe if it is due."""
        if self.next_deadline_us is None or now_us < self.next_deadline_us:
            return
        self.next_deadline_us = None
        self._is_probing = True

        def done(error: Exception | None) -> None:
            self._is_probing = False
            if error is None:
                self.has_room = True
            else:
                self.lacks(now_us)

        self._outbox.work(Lane.WRITE, self._probe, done)

    def _probe(self) -> None:
        file = self._vfs.open(ROOM_PATH, create=True)
        try:
            file.write_at(0, bytes(limits.DISK_SPACE_PROBE_BYTES))
        finally:
            file.close()
            with contextlib.suppress(OSError):
                self._vfs.remove(ROOM_PATH)
