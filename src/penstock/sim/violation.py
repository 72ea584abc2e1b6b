"""What every check raises."""

from __future__ import annotations


class ViolationError(Exception):
    """A promise was broken."""
