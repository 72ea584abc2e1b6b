"""What the driver must do after the node has decided: the only way out of the node.

Rules: field order is execution order. Files of replies are opened before disk work starts, so that work which removes
a segment cannot pull it from under an answer. Every DiskWork comes back through `Node.complete`, whatever became of it.
Notes come before disk work, which may close the log that they are about, and behind the acks, which they would delay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum

import msgspec

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.base.meters import Histogram
from penstock.messages import JoinRequest, Request, Response
from penstock.vfs import Vfs


class Lane(Enum):
    """Which disk threads do a piece of work: a slow read must not hold up a sync."""

    WRITE = "write"
    READ = "read"
    QUERY = "query"  # may read for long


@dataclass(slots=True, eq=False)
class DiskWork:
    """Work that may wait for the disk. `run` is called in a disk thread and touches only what it captured."""

    lane: Lane
    run: Callable[[], None]
    done: Callable[[Exception | None], None]  # called by the node, on the owner's side
    meter: Histogram | None = None  # of how long `run` takes, in µs
    user: str = ""  # for whom it is done, as `sharer_of`: users take turns in the lane READ


class Answers(msgspec.Struct, frozen=True, gc=False):
    """What publishers to one partition are told: ready-made PUB commands for NATS."""

    sid: int  # what the partition listens under
    commands: bytes
    acks: int = 0  # how many of them say that something is stored
    arrived_us: int = 0  # when what these are about came; elapsed


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe to a partition's subject, under an id that no other subscription of this run has had.

    `queue`: of those that subscribe with the same one, each message goes to one.
    """

    sid: int
    subject: str
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End that subscription; one that does not exist is fine."""

    sid: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Ask NATS for a sign that all before it is done; `token` then goes to `Node.reached`."""

    token: int


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range of a file, sent as it lies there."""

    vfs: Vfs
    path: str
    position: int
    length: int
    damage_found: Callable[[str, int, str], None]  # (path, position, reason): the file does not hold what it should


Payload = bytes | bytearray | Extent | tuple[Extent | bytes | bytearray, ...] | None
"""The raw part of an answer; the pieces of a tuple go out one after the other, as one raw part."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request. `caller` is what the driver gave with it."""

    caller: Hashable
    response: Response | RemoteError
    payload: Payload = None
    looked_bytes: int = 0  # what was looked through for it, which may be more than it brings


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """A caller within the node: it hears the answer itself."""

    heard: Callable[[Response | RemoteError], None]


class PeerRequest(msgspec.Struct, frozen=True, gc=False):
    """A request to another broker; what comes of it goes to `Node.answered`, with `token`."""

    to: BrokerId
    token: int
    request: Request
    payload: bytes


class Join(msgspec.Struct, frozen=True):
    """Ask one broker after the other, whoever it is, until one answers; the answer goes to `Node.joined`."""

    request: JoinRequest
    addresses: tuple[str, ...]  # HOST:PORT


class News(msgspec.Struct, frozen=True):
    """A line for the log that is about the cluster, and not about a mistake."""

    text: str
    is_warning: bool


class Step(msgspec.Struct):
    """What the driver must do, top to bottom."""

    publish: list[Answers] = []  # 1. to publishers; msgspec makes a list for each step
    replies: list[Reply] = []  # 2. to clients, and to peers that asked
    peers: list[PeerRequest] = []  # 3. to other brokers, in this order; to one that is not up any more: dropped
    peer_addresses: list[tuple[BrokerId, str]] = []  # 4. where a peer is from now on (see Peers); "": it is one no more
    cluster_id: str = ""  # 5. if not empty: which cluster this is, to be remembered for good and told to every peer
    join: Join | None = None  # 6. be let into a cluster
    nats: list[Subscribe | Unsubscribe | Barrier] = []  # 7. to NATS, in this order
    notes: list[Callable[[], None]] = []  # 8. what nobody waits for: checkpoints
    disk: list[DiskWork] = []  # 9. to the disk threads
    notices: list[str] = []  # 10. what an operator should read in the log
    news: list[News] = []  # 11. what has happened in the cluster, for the log
    failure: str = ""  # 12. if not empty: why this broker cannot go on; it is to be stopped, and says so by its end

    def answer(self, caller: Hashable, response: Response | RemoteError) -> None:
        """Tell whoever asked, also where that is a part of the node."""
        if isinstance(caller, Inside):
            caller.heard(response)
        else:
            self.replies.append(Reply(caller, response))

    def __bool__(self) -> bool:
        return bool(
            self.publish
            or self.replies
            or self.peers
            or self.peer_addresses
            or self.cluster_id
            or self.join
            or self.nats
            or self.notes
            or self.disk
            or self.notices
            or self.news
            or self.failure
        )


class Outbox:
    """Where the parts of the node put what the driver must do."""

    def __init__(self) -> None:
        self.step = Step()

    def take(self) -> Step:
        """What has come together since the last time."""
        step, self.step = self.step, Step()
        return step

    def reply(
        self, caller: Hashable, response: Response | RemoteError, payload: Payload = None, *, looked_bytes: int = 0
    ) -> None:
        """Answer one request."""
        self.step.replies.append(Reply(caller, response, payload, looked_bytes))

    def work(
        self,
        lane: Lane,
        run: Callable[[], None],
        done: Callable[[Exception | None], None],
        meter: Histogram | None = None,
        user: str = "",
    ) -> None:
        """Have a disk thread `run`, for a user; then `done` hears how it went, and `meter` how long it took."""
        self.step.disk.append(DiskWork(lane, run, done, meter, user))

    def notice(self, text: str) -> None:
        """Tell the operator."""
        self.step.notices.append(text)
