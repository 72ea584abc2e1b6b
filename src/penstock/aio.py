"""The asyncio client: `async with penstock.aio.connect() as client`, with the same calls as the blocking client."""

from __future__ import annotations

from penstock.client.aio import Client
from penstock.client.connecting import connect
from penstock.client.consumers import Consumer
from penstock.client.producing import Producer
from penstock.client.tables import Table

__all__ = ["Client", "Consumer", "Producer", "Table", "connect"]
