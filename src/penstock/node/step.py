"""The work of the driver after each decision of the node: the node's only output.

Rules: field order is execution order. Files of replies are opened before disk work starts, so that work which removes
a segment cannot take it away from an answer. Every DiskWork comes back through `Node.complete`, failed or not. Notes
come before disk work, which may close the log they are about, and after the acks, which they would delay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.base.meters import Histogram
from penstock.messages import JoinRequest, Request, Response
from penstock.vfs import Vfs


class Lane(Enum):
    """Thread pools for disk work, separate so that a slow read does not delay a sync."""

    WRITE = "write"
    READ = "read"
    QUERY = "query"  # may read for long


class PlainSync(NamedTuple):
    """A sync of one file (fdatasync), and a check that is due after it: it raises OSError, quickly on a local disk."""

    descriptor: int
    check: Callable[[], None] | None


@dataclass(slots=True, eq=False)
class DiskWork:
    """Work that may block on the disk. `run` is called in a disk thread and touches only what it captured.

    `sync`: all that `run` must do, so that the kernel can do it without a thread.
    """

    lane: Lane
    run: Callable[[], None]
    done: Callable[[Exception | None], None]  # called by the node, in the owner's thread
    meter: Histogram | None = None  # records the duration of `run`, in µs
    user: str = ""  # user that it is done for, as `sharer_of`: users take turns in the lane READ
    sync: PlainSync | None = None


class NatsAnswers(msgspec.Struct, frozen=True, gc=False):
    """Answers to publishers of one partition, or one to a caller of JetStream's API: ready-made commands for NATS."""

    sid: int  # the partition's subscription id, or GATEWAY_GROUP
    commands: bytes  # PUB commands; with `is_single` one PUB or HPUB
    acks: int = 0  # number of positive acks among them
    arrived_us: int = 0  # elapsed time when the answered messages arrived
    is_single: bool = False  # its payload may hold anything, also what looks like another command


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe to one of a partition's subjects, under an id whose lower GROUP_BITS bits are the partition's own.

    `queue`: NATS delivers each message to one of the subscribers with the same queue group.
    """

    sid: int
    subject: str
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End that subscription; an unknown id is ignored."""

    sid: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Ask NATS to confirm that it has processed everything before; `token` then goes to `Node.barrier_reached`."""

    token: int


@dataclass(frozen=True, slots=True)
class FileRange:
    """A byte range of a file, sent as it is."""

    vfs: Vfs
    path: str
    position: int
    length: int
    damage_found: Callable[[str, int, str], None]  # (path, position, reason): the file is corrupt


Payload = bytes | bytearray | FileRange | tuple[FileRange | bytes | bytearray, ...] | None
"""The raw part of an answer; the pieces of a tuple are sent one after the other, as one raw part."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request. `caller` is the driver's value for it."""

    caller: Hashable
    response: Response | RemoteError
    payload: Payload = None
    looked_bytes: int = 0  # bytes read for it, which may be more than it returns


@dataclass(frozen=True, slots=True, eq=False)
class InternalCaller:
    """A caller inside the node; it receives the answer directly."""

    heard: Callable[[Response | RemoteError], None]


class PeerRequest(msgspec.Struct, frozen=True, gc=False):
    """A request to another broker; its answer, or error, goes to `Node.answered` with `token`."""

    to: BrokerId
    token: int
    request: Request
    payload: bytes


class JoinAttempt(msgspec.Struct, frozen=True):
    """Ask these addresses one after the other until a broker answers; the answer goes to `Node.joined`."""

    request: JoinRequest
    addresses: tuple[str, ...]  # HOST:PORT


class ClusterLogLine(msgspec.Struct, frozen=True):
    """A log line about an event in the cluster, not about a fault."""

    text: str
    is_warning: bool


class Step(msgspec.Struct):
    """The work of the driver, top to bottom in execution order."""

    publish: list[NatsAnswers] = []  # 1. to publishers; msgspec makes a list for each step
    deliver: list[
        bytes | bytearray
    ] = []  # 2. LMSG and HMSG frames to subscribers, over the leaf connection; dropped without one
    replies: list[Reply] = []  # 3. to clients and peers
    peers: list[PeerRequest] = []  # 4. to other brokers, in this order; dropped if the broker is not connected any more
    peer_addresses: list[tuple[BrokerId, str]] = []  # 5. new address of a peer (see Peers); "": no longer a peer
    cluster_id: str = ""  # 6. if not empty: the cluster id, to be recorded for good and sent to every peer
    join: JoinAttempt | None = None  # 7. join a cluster
    nats: list[Subscribe | Unsubscribe | Barrier] = []  # 8. to NATS, in this order
    notes: list[Callable[[], None]] = []  # 9. checkpoints, which nothing waits for
    disk: list[DiskWork] = []  # 10. to the disk threads
    notices: list[str] = []  # 11. log lines for the operator
    news: list[ClusterLogLine] = []  # 12. cluster events, for the log
    failure: str = ""  # 13. if not empty: why this broker cannot go on; the driver stops it with a failure

    def reply(
        self, caller: Hashable, response: Response | RemoteError, payload: Payload = None, *, looked_bytes: int = 0
    ) -> None:
        """Answer a caller, which may be a part of the node: that one gets the answer at once, without the raw part."""
        if isinstance(caller, InternalCaller):
            caller.heard(response)
        else:
            self.replies.append(Reply(caller, response, payload, looked_bytes))

    def __bool__(self) -> bool:
        return self != _NOTHING  # compared by msgspec: quicker than thirteen looks


_NOTHING = Step()


class Outbox:
    """Collects the effects of the node's parts."""

    def __init__(self) -> None:
        self.step = Step()

    def take(self) -> Step:
        """Return the effects collected since the last call."""
        step, self.step = self.step, Step()
        return step

    def reply(
        self, caller: Hashable, response: Response | RemoteError, payload: Payload = None, *, looked_bytes: int = 0
    ) -> None:
        """Answer a caller; see `Step.reply`."""
        self.step.reply(caller, response, payload, looked_bytes=looked_bytes)

    def work(
        self,
        lane: Lane,
        run: Callable[[], None],
        done: Callable[[Exception | None], None],
        meter: Histogram | None = None,
        user: str = "",
        sync: PlainSync | None = None,
    ) -> None:
        """Have a disk thread `run`, for a user; then call `done` with the error or None; `meter` gets the duration.

        `sync`: see `DiskWork`.
        """
        self.step.disk.append(DiskWork(lane, run, done, meter, user, sync))

    def notice(self, text: str) -> None:
        """Log a line for the operator."""
        self.step.notices.append(text)
