"""The asyncio client: `async with penstock.aio.connect() as client`, with the same calls as the blocking client."""

from __future__ import annotations

from penstock.client.aio import Client, connect
from penstock.client.append.producing import Producer
from penstock.client.consume.consumers import Consumer
from penstock.client.consume.tables import Table

__all__ = ["Client", "Consumer", "Producer", "Table", "connect"]
