"""What is looked at before JetStream gives its subject away: whether the brokers hear what is published there.

Rules: it is tried, not concluded: names of servers and clusters say nothing of accounts, leaf nodes and permissions. A
stream is made for a moment, in memory, on a subject of its own below `$PENSTOCK.import`; a message to each of its
partitions goes out through the connection by which JetStream is asked, and its leader has to ack it there. It
has a partition for each broker: whoever leads the imported stream one day must hear its subject, too.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.base.config import Storage
from penstock.base.errors import ErrorCode, OperationalError
from penstock.base.partitioning import PartitionBy
from penstock.base.subjects import partition_subject
from penstock.cli.failure import advising, say_note

if TYPE_CHECKING:
    from collections.abc import Set

    from penstock.base.ids import BrokerId
    from penstock.cli.jetstream import JetStream
    from penstock.client.blocking import Client
    from penstock.client.threads import LoopThread
    from penstock.messages import StatusResponse, StreamInfo

SUBJECTS = "$PENSTOCK.import"
_PERMISSION = (
    f"it is only to see whether brokers hear what is published where JetStream is: allow them {SUBJECTS}.> in NATS "
    "(docs/how-to/nats-permissions.md)"
)
_WAIT_S = 3.0  # until word of a subscription has come to every nats-server
_ROUNDS_MAX = 3  # each with twice as many partitions: who leads much already gets the last ones


def check_is_heard(client: Client, thread: LoopThread, js: JetStream, source: str, timeout_s: float) -> None:
    """OperationalError: a broker does not hear what is published there, or its acks do not come back."""
    status = client.status(timeout=timeout_s)
    brokers = {one.broker_id for one in status.brokers if one.is_live}
    partitions = max(1, len(brokers))
    for _ in range(_ROUNDS_MAX):
        missing = brokers - _tried(client, thread, js, source, partitions, status, timeout_s)
        if not missing:
            return
        partitions *= 2
    shown = ", ".join(map(str, sorted(missing)))
    say_note(
        f"note: whether broker {shown} hears what is published at {js.shown} was not tried: it leads nothing there"
    )


def _tried(
    client: Client,
    thread: LoopThread,
    js: JetStream,
    source: str,
    partitions: int,
    status: StatusResponse,
    timeout_s: float,
) -> Set[BrokerId]:
    """The brokers that have acked."""
    token = hashlib.sha256(source.encode()).hexdigest()[:16]  # the same each time: a killed one's is found
    name, subject = f"import-{token}", f"{SUBJECTS}.{token}"
    _delete(client, name, subject, timeout_s)
    try:
        with advising(ErrorCode.NATS_REFUSED, _PERMISSION):
            client.create_stream(
                name,
                subject,
                timeout=timeout_s,
                storage=Storage.MEMORY,
                replicas=1,
                partitions=partitions,
                partition_by=PartitionBy.PUBLISHER,
            )
        info = client.stream(name, timeout=timeout_s)
        _check(thread, js, info, status)
    finally:
        _delete(client, name, subject, timeout_s)
    led = {one.leader_id for one in info.partitions if one.leader_id is not None}
    return led or {status.broker_id}  # a broker that tells of no leaders is alone


def _check(thread: LoopThread, js: JetStream, info: StreamInfo, status: StatusResponse) -> None:
    subjects = [partition_subject(info.subject, one.partition) for one in info.partitions]
    found = thread.run(js.acked_by(info.name, subjects, _WAIT_S))
    deaf: dict[str, str] = {}  # address → what came instead of an ack
    for part, why in zip(info.partitions, found, strict=True):
        if why:
            deaf.setdefault(part.leader or status.address, why)
    if not deaf:
        return
    who = ", ".join(f"{address} ({why})" for address, why in sorted(deaf.items()))
    text = f"what is published at {js.shown} is not heard by {'brokers' if len(deaf) > 1 else 'the broker at'} {who}"
    error = OperationalError(f"{text}: once JetStream stores it no longer, nobody would. Nothing was changed")
    at = status.nats.url or "another one"
    error.add_note(
        f"the broker at {status.address} uses {at}: have brokers use that NATS, in the same account, or tie the two "
        "together (a cluster, a leaf node); docs/how-to/move-from-jetstream.md"
    )
    raise error


def _delete(client: Client, name: str, subject: str, timeout_s: float) -> None:
    from penstock.client.errors import StreamNotFound

    with suppress(StreamNotFound):
        there = client.stream(name, timeout=timeout_s)
        if there.subject == subject:
            client.delete_stream(there, timeout=timeout_s)
