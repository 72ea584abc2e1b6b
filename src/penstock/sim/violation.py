"""The error of every check."""

from __future__ import annotations


class ViolationError(Exception):
    """A promise was broken."""
