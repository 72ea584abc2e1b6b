"""Publish to a stream with an unmodified NATS client (nats-py), and wait for each ack.

The stream must be there: `penstock stream create shop 'shop.>'`. NATS_URL names the NATS server.
"""

from __future__ import annotations

import asyncio
import json
import os

import nats

ORDERS = [
    {"customer": "anna", "region": "eu", "total": 42},
    {"customer": "ben", "region": "us", "total": 7},
    {"customer": "anna", "region": "eu", "total": 20},
]


async def main() -> None:
    """Publish three orders; a second run stores nothing again."""
    connection = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    js = connection.jetstream()
    for number, order in enumerate(ORDERS):
        headers = {
            "Penstock-Key": str(order["customer"]),  # with several partitions the key chooses one
            "Nats-Msg-Id": f"order-{number}",  # a repeated id within two minutes is a duplicate
        }
        # Returns once the message is on the disk (or replicated). Raises nats.errors.Error if it is refused.
        ack = await js.publish(f"shop.{order['region']}", json.dumps(order).encode(), headers=headers)
        how = "duplicate" if ack.duplicate else "stored"
        print(f"{how} in {ack.stream} at offset {ack.seq - 1}")  # JetStream counts from 1, Penstock from 0
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
