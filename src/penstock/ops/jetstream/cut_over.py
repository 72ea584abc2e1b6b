"""Check before an import's cut-over: do the brokers receive messages that are published where JetStream is?

Rules: the check publishes messages, because names of servers and clusters say nothing of accounts, leaf nodes and
permissions. It creates a temporary stream in memory, on a subject of its own below `$PENSTOCK.import`; publishes a
message to each of its partitions through the connection to JetStream, and waits there for the leader's ack. The stream
has at least one partition per broker, because every broker may lead the imported stream later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Set
from contextlib import suppress
from typing import NamedTuple

from penstock.base.config import Storage
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import BrokerId
from penstock.base.partitioning import PartitionBy
from penstock.base.subjects import partition_subject
from penstock.client.blocking.client import Client
from penstock.client.blocking.threads import LoopThread
from penstock.client.errors import StreamNotFound
from penstock.messages import StatusResponse, StreamInfo
from penstock.ops.jetstream.source import JetStream
from penstock.ops.progress import Progress

SUBJECTS = "$PENSTOCK.import"
_PERMISSION = (
    f"the import tests if brokers receive messages published where JetStream is: allow them {SUBJECTS}.> in NATS "
    "(docs/how-to/nats-permissions.md)"
)
_WAIT_S = 3.0  # time for a subscription to reach every nats-server
_ROUNDS_MAX = 3  # each doubles the partitions, because brokers that lead many partitions get new ones last


class CutOverCheck(NamedTuple):
    """The check for the JetStream stream `source`."""

    client: Client
    thread: LoopThread
    js: JetStream
    source: str
    timeout_s: float
    progress: Progress

    def run(self) -> None:
        """Raise OperationalError if a broker does not receive messages published there, or its acks do not arrive."""
        status = self.client.status(timeout=self.timeout_s)
        brokers = {one.broker_id for one in status.brokers if one.is_live}
        partitions = max(1, len(brokers))
        for _ in range(_ROUNDS_MAX):
            missing = brokers - self._tried(partitions, status)
            if not missing:
                return
            partitions *= 2
        text = f"note: not tested if broker {', '.join(map(str, sorted(missing)))} receives messages published at"
        self.progress.note(f"{text} {self.js.shown}: it leads no test partition")

    def _tried(self, partitions: int, status: StatusResponse) -> Set[BrokerId]:
        """Return the brokers that acked a message."""
        # The name is constant, to find the stream of a run that was killed.
        token = hashlib.sha256(self.source.encode()).hexdigest()[:16]
        name, subject = f"import-{token}", f"{SUBJECTS}.{token}"
        self._delete(name, subject)
        try:
            try:
                self.client.create_stream(
                    name,
                    subject,
                    timeout=self.timeout_s,
                    storage=Storage.MEMORY,
                    replicas=1,
                    partitions=partitions,
                    partition_by=PartitionBy.PUBLISHER,
                )
            except RemoteError as error:
                if error.code == ErrorCode.NATS_REFUSED:
                    error.add_note(_PERMISSION)
                raise
            info = self.client.stream(name, timeout=self.timeout_s)
            self._check(info, status)
        finally:
            self._delete(name, subject)
        led = {one.leader_id for one in info.partitions if one.leader_id is not None}
        return led or {status.broker_id}  # a broker without a cluster reports no leaders

    def _check(self, info: StreamInfo, status: StatusResponse) -> None:
        subjects = [partition_subject(info.subject, one.partition) for one in info.partitions]
        found = self.thread.run(self.js.acked_by(info.name, subjects, _WAIT_S))
        deaf: dict[str, str] = {}  # address → answer or failure instead of an ack
        for part, why in zip(info.partitions, found, strict=True):
            if why:
                deaf.setdefault(part.leader or status.address, why)
        if not deaf:
            return
        who = ", ".join(f"{address} ({why})" for address, why in sorted(deaf.items()))
        to = "brokers" if len(deaf) > 1 else "the broker at"
        text = f"messages published at {self.js.shown} do not reach {to} {who}"
        error = OperationalError(f"{text}: after the cut-over they would be lost. Nothing was changed")
        at = status.nats.url or "another one"
        error.add_note(
            f"the broker at {status.address} uses {at}: have brokers use that NATS, in the same account, or connect "
            "the two (a cluster, a leaf node); docs/how-to/move-from-jetstream.md"
        )
        raise error

    def _delete(self, name: str, subject: str) -> None:
        with suppress(StreamNotFound):
            there = self.client.stream(name, timeout=self.timeout_s)
            if there.subject == subject:
                self.client.delete_stream(there, timeout=self.timeout_s)
