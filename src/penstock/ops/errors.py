"""Errors of operations: arguments that do not fit, and a stop by the caller."""

from __future__ import annotations

from penstock.base.errors import PenstockError


class ArgumentError(PenstockError, ValueError):
    """An argument that does not fit the stream or the cluster that it is for. Nothing was changed."""


class StoppedError(PenstockError):
    """The caller has stopped an operation. What it completed is kept, and the next run continues."""
