"""What a batch has written, published on NATS as well, for those who subscribe: `option("republish", "live")`.

Rules: what is in the log comes first: a message is published once its batch is there, on the prefix and its subject, as
`live.orders.eu`. Nobody acks it, and a batch that Spark replays is published again: subscribers see each message at
least once. It comes from where it was staged, so it is what this batch has written and nothing else. It passes through
the driver, one by one: it is for what people look at, not for floods.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.base.staged import staged_name
from penstock.client.blocking import Client
from penstock.client.staging import Staged


def republish(client: Client, prefix: str, staged: Iterable[Staged], timeout_s: float) -> int:
    """How many messages were published."""
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
