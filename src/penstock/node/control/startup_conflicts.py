"""Startup conflicts: end this broker if other brokers show that it was started wrongly.

Rules: a broker ends itself for this only if it has had no part in the cluster in this run; one that has had a part goes
on, whatever the others say, unless the metadata leader has given its place to a copy of it. A single broker of another
cluster is no reason: that broker may be the wrong one. If so many voters are of another cluster that the rest is no
majority, this broker cannot take part. If another live broker has this one's number or address, this one waits
ID_CONFLICT_MS: the other may be dead and not yet fenced. A broker on an older copy of its data directory has forgotten
votes and acknowledgements, and ends at once.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.node.settings import Settings
from penstock.node.step import Outbox

_TAKEN_US = limits.ID_CONFLICT_MS * 1_000
_PAUSE_US = limits.PEER_SILENCE_MS_MAX * 1_000
OLDER_COPY = "an older copy"
"""Part of the reason with which a broker on an older copy ends."""
_NEWER_ONE = (
    "Put the newer one back; start with an empty one (--data-dir) only if most of the voters are there with their data "
    "directories"
)


class StartupConflicts:
    """Ends the broker, by `Step.failure`, once it is clear that it was started wrongly."""

    def __init__(self, settings: Settings, outbox: Outbox) -> None:
        self.is_settled = False  # this run has had a part in the cluster
        self._settings = settings
        self._outbox = outbox
        self._strangers: set[BrokerId] = set()
        self._refusals: dict[BrokerId, str] = {}  # by voters for which this data directory is an older copy
        self._taken_us: tuple[int, int] | None = None  # time of the first and of the last such refusal

    def same_cluster_confirmed(self, broker_id: BrokerId) -> None:
        """Note that the broker is of our cluster."""
        self._strangers.discard(broker_id)

    def refused(self, who: str, broker_id: BrokerId, error: RemoteError, voters: tuple[BrokerId, ...]) -> None:
        """Handle a refusal by a broker (0: unknown which) of another cluster; `voters` are those of ours."""
        self._strangers.add(broker_id)
        ours = len(voters) - len(self._strangers.intersection(voters))
        if self.is_settled or ours > len(voters) // 2:
            return
        self._outbox.step.failure = (
            f"{self._settings.data_dir} is a data directory of another cluster than {who}: {error.message}; wrong "
            "--data-dir? Give it the one of this cluster, or another, empty one, and keep this one: the others may "
            "lack what it has"
        )

    def id_conflict_reported(self, error: RemoteError, now_us: int) -> None:
        """Handle a refusal because a live broker has this one's number or address."""
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

    def stale_data_dir_reported(self, error: RemoteError) -> None:
        """Handle a refusal by the metadata leader because this data directory is not as its last run left it."""
        settings = self._settings
        if self.is_settled:  # it was fenced and a copy took its place: it is never registered again
            self._outbox.step.failure = (
                f"while broker {settings.broker_id} was out of contact, another process took its place, with a copy of "
                f"{settings.data_dir}: {error.message}. Its data directory stays as it is"
            )
            return
        self._outbox.step.failure = (
            f"the data directory {settings.data_dir} is {OLDER_COPY} of that of broker {settings.broker_id}: "
            f"{error.message}. Put the newer one back, or start with an empty one (--data-dir): what it held is "
            "fetched from the others"
        )

    def accepted_by(self, broker_id: BrokerId) -> None:
        """Note that a voter accepts this broker's messages."""
        self._refusals.pop(broker_id, None)

    def stale_data_dir_reported_by(self, broker_id: BrokerId, error: RemoteError, voters: tuple[BrokerId, ...]) -> None:
        """Handle the same refusal by a voter while there is no metadata leader; a single voter may be wrong."""
        self._refusals[broker_id] = error.message
        if self.is_settled or len(voters) - len(set(voters) & set(self._refusals)) > len(voters) // 2:
            return
        self._outbox.step.failure = (
            f"the data directory {self._settings.data_dir} is {OLDER_COPY} of that of broker "
            f"{self._settings.broker_id}: {error.message}. {_NEWER_ONE}"
        )

    @property
    def refusal(self) -> str:
        """Reason, for people, why a voter refuses this broker's messages; empty if all that answered accept them."""
        text = next((self._refusals[one] for one in sorted(self._refusals)), "")
        return text and f"{text}: it takes this one for {OLDER_COPY}. {_NEWER_ONE}"


def is_cluster_mismatch(error: RemoteError) -> bool:
    """True if the refusal says that its sender is of another cluster."""
    return error.code == ErrorCode.CLUSTER_MISMATCH and "cluster_id" in error.details


def is_id_conflict(error: RemoteError) -> bool:
    """True if the refusal says that another broker has our number or address."""
    return error.details.get("taken") is True


def is_stale_data_dir(error: RemoteError) -> bool:
    """True if the refusal says that our data directory is older than our last run."""
    return error.details.get("older_copy") is True
