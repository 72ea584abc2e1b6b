"""Check before an import's cut-over: do the brokers receive messages that are published where JetStream is?

Rules: the check publishes messages, because names of servers and clusters say nothing of accounts, leaf nodes and
permissions. It creates a temporary stream in memory, on a subject of its own below `$PENSTOCK.import`; publishes a
message to each of its partitions through the connection to JetStream, and waits there for the leader's ack. The stream
has at least one partition per broker, because every broker may lead the imported stream later.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.base.config import Storage
from penstock.base.errors import ErrorCode, OperationalError
from penstock.base.partitioning import PartitionBy
from penstock.base.subjects import partition_subject
from penstock.cli.terminal.failure import advising, say_note

if TYPE_CHECKING:
    from collections.abc import Set

    from penstock.base.ids import BrokerId
    from penstock.cli.jetstream.source import JetStream
    from penstock.client.blocking.client import Client
    from penstock.client.blocking.threads import LoopThread
    from penstock.messages import StatusResponse, StreamInfo

SUBJECTS = "$PENSTOCK.import"
_PERMISSION = (
    f"the import tests if brokers receive messages published where JetStream is: allow them {SUBJECTS}.> in NATS "
    "(docs/how-to/nats-permissions.md)"
)
_WAIT_S = 3.0  # time for a subscription to reach every nats-server
_ROUNDS_MAX = 3  # each doubles the partitions, because brokers that lead many partitions get new ones last


def check_is_heard(client: Client, thread: LoopThread, js: JetStream, source: str, timeout_s: float) -> None:
    """Raise OperationalError if a broker does not receive messages published there, or its acks do not arrive."""
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
        f"note: not tested if broker {shown} receives messages published at {js.shown}: it leads no test partition"
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
    """Return the brokers that acked a message."""
    token = hashlib.sha256(source.encode()).hexdigest()[:16]  # constant, to find the stream of a run that was killed
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
    return led or {status.broker_id}  # a broker without a cluster reports no leaders


def _check(thread: LoopThread, js: JetStream, info: StreamInfo, status: StatusResponse) -> None:
    subjects = [partition_subject(info.subject, one.partition) for one in info.partitions]
    found = thread.run(js.acked_by(info.name, subjects, _WAIT_S))
    deaf: dict[str, str] = {}  # address → answer or failure instead of an ack
    for part, why in zip(info.partitions, found, strict=True):
        if why:
            deaf.setdefault(part.leader or status.address, why)
    if not deaf:
        return
    who = ", ".join(f"{address} ({why})" for address, why in sorted(deaf.items()))
    text = f"messages published at {js.shown} do not reach {'brokers' if len(deaf) > 1 else 'the broker at'} {who}"
    error = OperationalError(f"{text}: after the cut-over they would be lost. Nothing was changed")
    at = status.nats.url or "another one"
    error.add_note(
        f"the broker at {status.address} uses {at}: have brokers use that NATS, in the same account, or connect the "
        "two (a cluster, a leaf node); docs/how-to/move-from-jetstream.md"
    )
    raise error


def _delete(client: Client, name: str, subject: str, timeout_s: float) -> None:
    from penstock.client.errors import StreamNotFound

    with suppress(StreamNotFound):
        there = client.stream(name, timeout=timeout_s)
        if there.subject == subject:
            client.delete_stream(there, timeout=timeout_s)
