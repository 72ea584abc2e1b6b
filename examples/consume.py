"""Consume a stream as a consumer group, and commit offsets: at-least-once delivery.

Start it several times to share the partitions of a stream. Set FOLLOW=1 to wait for new messages, until Ctrl-C.
PENSTOCK_SERVER names the broker.
"""

from __future__ import annotations

import json
import os

import penstock


def main() -> None:
    """Print each order once it is read; a second run continues at the committed offset."""
    follow = os.environ.get("FOLLOW") == "1"
    with penstock.connect() as client, client.consumer("shop", "billing", follow=follow) as consumer:
        for message in consumer.messages():
            if message.value is None:  # a tombstone
                continue
            order = json.loads(message.value)
            print(f"partition {message.partition} offset {message.offset}: {order['customer']} pays {order['total']}")
            # Commit after the work: if this process is killed before, the message is delivered again. Without this
            # line the consumer commits every 5 seconds, and at the end of the block.
            consumer.commit()
        for place in client.groups.offsets("billing", "shop"):
            print(f"partition {place.partition}: committed {place.offset}, lag {place.lag}")


if __name__ == "__main__":
    main()
