"""Whether this broker belongs where it was started: what others say who refuse it.

Rules: only a broker that has had no part in the cluster in this run ends itself for it; one that has goes on, whoever
says what, unless the metadata leader has given its place to a copy of it. A single stranger is no reason: it may be the
one that is wrong. Where so many are of another cluster that the rest is no majority, this broker can have no part. Who
bears its number or its address is given the time to be found dead. Who has an older copy of its data directory has
forgotten what it promised, and ends at once.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.node.settings import Settings
from penstock.node.step import Outbox

_TAKEN_US = limits.TAKEN_MS * 1_000
_PAUSE_US = limits.PEER_SILENCE_MS_MAX * 1_000
OLDER_COPY = "an older copy"
"""In the reason with which such a broker ends."""
_NEWER_ONE = (
    "Put the newer one back; start with an empty one (--data-dir) only if most of the voters are there with their data "
    "directories"
)


class Belonging:
    """Ends the broker, by `Step.failure`, once it is clear that it was started wrongly."""

    def __init__(self, settings: Settings, outbox: Outbox) -> None:
        self.is_settled = False  # this run has had its part in the cluster
        self._settings = settings
        self._outbox = outbox
        self._strangers: set[BrokerId] = set()
        self._refusals: dict[BrokerId, str] = {}  # of voters to which this data directory is an older copy
        self._taken_us: tuple[int, int] | None = None  # when it was refused for that first, and last

    def met(self, broker_id: BrokerId) -> None:
        """That broker is of our cluster."""
        self._strangers.discard(broker_id)

    def refused(self, who: str, broker_id: BrokerId, error: RemoteError, voters: tuple[BrokerId, ...]) -> None:
        """Another broker (0: not known which) is of another cluster; `voters` are those of ours."""
        self._strangers.add(broker_id)
        ours = len(voters) - len(self._strangers.intersection(voters))
        if self.is_settled or ours > len(voters) // 2:
            return
        self._outbox.step.failure = (
            f"{self._settings.data_dir} is a data directory of another cluster than {who}: {error.message}; wrong "
            "--data-dir? Give it the one of this cluster, or another, empty one, and keep this one: the others may "
            "lack what it has"
        )

    def taken(self, error: RemoteError, now_us: int) -> None:
        """A live broker has this one's number or address already."""
        first_us, last_us = self._taken_us or (now_us, now_us)
        if now_us - last_us > _PAUSE_US:
            first_us = now_us
        self._taken_us = first_us, now_us
        if self.is_settled or now_us - first_us < _TAKEN_US:
            return
        settings = self._settings
        self._outbox.step.failure = (
            f"{error.message}; this one is broker {settings.broker_id} at {settings.address}, with the data directory "
            f"{settings.data_dir}: give it a number, an address and a data directory of its own, or stop the other one"
        )

    def older_copy(self, error: RemoteError) -> None:
        """This one's data directory is not as its last run has left it; only the metadata leader can say so."""
        settings = self._settings
        if self.is_settled:  # it was taken for dead, and a copy has its place: it is never registered again
            self._outbox.step.failure = (
                f"while broker {settings.broker_id} was not heard of, another process took its place, with a copy of "
                f"{settings.data_dir}: {error.message}. Its data directory stays as it is"
            )
            return
        self._outbox.step.failure = (
            f"the data directory {settings.data_dir} is {OLDER_COPY} of that of broker {settings.broker_id}: "
            f"{error.message}. Put the newer one back, or start with an empty one (--data-dir): what it held is "
            "fetched from the others"
        )

    def heard_by(self, broker_id: BrokerId) -> None:
        """That voter takes what this broker says."""
        self._refusals.pop(broker_id, None)

    def older_copy_to(self, broker_id: BrokerId, error: RemoteError, voters: tuple[BrokerId, ...]) -> None:
        """One voter says so, while nobody leads that could: it alone may be the one that is wrong."""
        self._refusals[broker_id] = error.message
        if self.is_settled or len(voters) - len(set(voters) & set(self._refusals)) > len(voters) // 2:
            return
        self._outbox.step.failure = (
            f"the data directory {self._settings.data_dir} is {OLDER_COPY} of that of broker "
            f"{self._settings.broker_id}: {error.message}. {_NEWER_ONE}"
        )

    @property
    def refusal(self) -> str:
        """Why a voter does not take what this broker says, for people; empty: all that have answered do."""
        text = next((self._refusals[one] for one in sorted(self._refusals)), "")
        return text and f"{text}: it takes this one for {OLDER_COPY}. {_NEWER_ONE}"


def is_stranger(error: RemoteError) -> bool:
    """Whether the refusal says that its sender is of another cluster."""
    return error.code == ErrorCode.CLUSTER_MISMATCH and "cluster_id" in error.details


def is_taken(error: RemoteError) -> bool:
    """Whether the refusal says that somebody else bears our number or address."""
    return error.details.get("taken") is True


def is_older_copy(error: RemoteError) -> bool:
    """Whether the refusal says that our data directory is older than our last run."""
    return error.details.get("older_copy") is True
