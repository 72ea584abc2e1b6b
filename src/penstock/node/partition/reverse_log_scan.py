"""Backwards search through the headers of the last batches of a log, in a disk thread."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from penstock.batch.header import BatchHeader
from penstock.commitlog import LogView


class HeaderCollector(Protocol):
    """Collects headers, beginning with the last."""

    def wants(self, header: BatchHeader) -> bool:
        """True if the batch is to be verified and added."""

    def add(self, header: BatchHeader) -> None:
        """Take a wanted header."""


F = TypeVar("F", bound=HeaderCollector)


class ReverseLogScan(Generic[F]):
    """Passes to `found` the wanted batches no older than `since_us`."""

    def __init__(self, view: LogView, since_us: int, found: F) -> None:
        self._view = view
        self._since_us = since_us
        self.found = found

    def run(self) -> None:
        """Raise RemoteError (corrupt_range) or OSError."""
        view = self._view
        start = view.offset_at(self._since_us, end=view.log_end)
        for header, _ in view.batches(start, view.log_end, reverse=True, wants=self.found.wants):
            self.found.add(header)
