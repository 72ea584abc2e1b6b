"""Penstock for asyncio: `await penstock.aio.connect()`. The same calls as the blocking `penstock.connect()`."""

from __future__ import annotations

from penstock.client.aio import Client, connect

__all__ = ["Client", "connect"]
