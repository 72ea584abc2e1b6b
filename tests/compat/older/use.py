"""A program that uses a cluster with the client that it finds, and prints what came of it as JSON.

python use.py SERVER STREAM
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from penstock import __version__, aio

COUNT = 200


async def main(server: str, stream: str) -> dict[str, Any]:
    """Make a stream, publish, append, read, look up, consume and commit."""
    async with await aio.connect(server) as client:
        info = await client.create_stream(stream, f"{stream}.>", replicas=3)
        acks = [await client.publish(f"{stream}.a", b"%d" % number, key=b"k") for number in range(COUNT)]
        rows = [{"subject": f"{stream}.b", "value": b"%d" % number} for number in range(COUNT, 2 * COUNT)]
        await client.producer(stream).append(rows)
        read = []
        async for batch in client.read(stream):
            read += [int(value) for value in batch.column("value").to_pylist()]
        one = await client.get(stream, offset=7)
        consumed = 0
        async with client.consumer(stream, group=f"{stream}-group") as consumer:
            async for batch in consumer:
                consumed += batch.num_rows
                await consumer.commit()
                if consumed >= 2 * COUNT:
                    break
        status = await client.status()
        return {
            "version": __version__,
            "brokers": sorted(one.broker_version for one in status.brokers),
            "offsets": [ack.offset for ack in acks],
            "read": read,
            "got": (one.value or b"").decode(),
            "consumed": consumed,
            "replicas": len(info.partitions[0].replicas),
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
