"""Publishes the rows of a written batch also on NATS, for subscribers: `option("republish", "live")`.

Rules: a message is published after its batch is in the log, to the prefix and its subject, such as `live.orders.eu`. It
is not acked, and a batch that Spark replays is published again: delivery is at least once. The messages are read from
the staged rows, so they are exactly those of this batch. They pass through the driver one by one, so this is for low
rates, such as those of a dashboard.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.base.staged import staged_name
from penstock.client.append.staging import Staged
from penstock.client.blocking.client import Client


def republish(client: Client, prefix: str, staged: Iterable[Staged], timeout_s: float) -> int:
    """Publish staged rows on NATS; return the number of messages."""
    count = 0
    for one in staged:
        for batch in one.batches:
            found = client.messages(
                staged_name(one.stream_id),
                batch.base_offset,
                end=batch.end_offset,
                partition=one.partition,
                timeout=timeout_s,
            )
            for message in found:
                subject, headers = f"{prefix}.{message.subject}", dict(message.headers)
                client.publish_nowait(subject, message.value, key=message.key, headers=headers, ack="none")
                count += 1
    client.flush(timeout=timeout_s)
    return count
