"""Which live brokers were heard of lately: kept by the metadata leader alone, in memory.

Rules: only a run that the image takes for live has a session. One that has just begun, and every one when a metadata
leader begins, has its full time. What a metadata leader has not heard itself, lately, it does not take for granted
either: who is silent is given nothing to lead or to hold, where another one could. Of a time in which this broker
itself did not run only a little is counted as silence.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.ids import BrokerId, Incarnation
from penstock.metadata.image import ClusterImage


@dataclass(slots=True)
class _Session:
    incarnation: Incarnation
    deadline_us: int
    heard_us: int | None  # None: not yet, by this metadata leader
    applied_index: int = 0  # of the metadata log, as the broker said last
    has_nats: bool = True  # the same
    has_keys: bool | None = None  # the same; None: it has not said so yet


class Sessions:
    """One session for each live broker."""

    def __init__(self, session_us: int) -> None:
        self._session_us = session_us
        self._sessions: dict[BrokerId, _Session] = {}
        self._looked_us: int | None = None

    def restart(self, image: ClusterImage, now_us: int) -> None:
        """Begin to lead: all have their full time."""
        self._sessions = {}
        self._looked_us = now_us
        self.follow(image, now_us)
        for session in self._sessions.values():
            session.heard_us = None

    def follow(self, image: ClusterImage, now_us: int) -> None:
        """The brokers of the image have changed."""
        kept = {}
        for broker_id, broker in image.brokers.items():
            if not broker.is_live:
                continue
            session = self._sessions.get(broker_id)
            if session is None or session.incarnation != broker.incarnation:
                session = _Session(broker.incarnation, now_us + self._session_us, now_us)
            kept[broker_id] = session
        self._sessions = kept

    def heard(
        self, broker_id: BrokerId, applied_index: int, now_us: int, *, has_nats: bool = True, has_keys: bool = True
    ) -> None:
        """A heartbeat of a live run has come."""
        session = self._sessions[broker_id]
        session.deadline_us = now_us + self._session_us
        session.heard_us = now_us
        session.has_nats, session.has_keys = has_nats, has_keys
        session.applied_index = max(session.applied_index, applied_index)

    def silent(self, now_us: int) -> list[tuple[BrokerId, Incarnation]]:
        """Whose time is up."""
        looked_us, self._looked_us = self._looked_us, now_us
        if looked_us is not None and now_us - looked_us > self._session_us // 2:
            # This process slept, and their heartbeats wait in its sockets. Some of it counts all the same, so that one
            # that sleeps again and again still finds out who is dead.
            for session in self._sessions.values():
                session.deadline_us += now_us - looked_us - self._session_us // 6
        return [(one, session.incarnation) for one, session in self._sessions.items() if session.deadline_us <= now_us]

    def heard_since(self, since_us: int) -> frozenset[BrokerId]:
        """The live brokers that this metadata leader has heard of since then."""
        sessions = self._sessions.items()
        return frozenset(
            one for one, session in sessions if session.heard_us is not None and session.heard_us >= since_us
        )

    def is_heard_since(self, broker_id: BrokerId, since_us: int) -> bool:
        """Whether the present run of that broker has been heard of since then, by this metadata leader."""
        session = self._sessions.get(broker_id)
        return session is not None and session.heard_us is not None and session.heard_us >= since_us

    def without_nats(self) -> frozenset[BrokerId]:
        """The live brokers that have said that NATS is not there for them."""
        return frozenset(broker_id for broker_id, session in self._sessions.items() if not session.has_nats)

    def without_keys(self) -> frozenset[BrokerId]:
        """The live brokers that have said that they can encrypt nothing."""
        return frozenset(broker_id for broker_id, session in self._sessions.items() if session.has_keys is False)

    def keys_unsaid(self) -> frozenset[BrokerId]:
        """The live brokers that have not said yet whether they can encrypt."""
        return frozenset(broker_id for broker_id, session in self._sessions.items() if session.has_keys is None)

    def behind(self, index: int) -> tuple[BrokerId, ...]:
        """The live brokers that have not said yet that they applied the command at `index`."""
        return tuple(broker_id for broker_id, session in self._sessions.items() if session.applied_index < index)
