"""Looks through the end of a log for what its batches say, the last one first; in a disk thread."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from penstock.batch.header import BatchHeader
from penstock.commitlog import LogView


class Gathers(Protocol):
    """What headers are told to, from the last one on."""

    def wants(self, header: BatchHeader) -> bool:
        """Whether the batch says something: then it is to be verified, and added."""

    def add(self, header: BatchHeader) -> None:
        """One that is wanted."""


F = TypeVar("F", bound=Gathers)


class LookBack(Generic[F]):
    """Tell `found` of the batches no older than `since_us`, as far as it wants them."""

    def __init__(self, view: LogView, since_us: int, found: F) -> None:
        self._view = view
        self._since_us = since_us
        self.found = found

    def run(self) -> None:
        """Read them; RemoteError corrupt_range, OSError."""
        view = self._view
        start = view.offset_at(self._since_us, end=view.log_end)
        for header, _ in view.batches(start, view.log_end, reverse=True, wants=self.found.wants):
            self.found.add(header)
