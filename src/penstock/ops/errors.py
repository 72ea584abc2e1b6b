"""The error for arguments that do not fit."""

from __future__ import annotations

from penstock.base.errors import PenstockError


class ArgumentError(PenstockError, ValueError):
    """An argument that does not fit the stream or the cluster that it is for. Nothing was changed."""
