"""Broker sessions: heartbeats of live brokers, kept by the metadata leader alone, in memory.

Rules: only an incarnation that the image shows as live has a session. A new one, and every one when a metadata leader
begins, has the full session time-out. A metadata leader trusts only heartbeats that it received itself, lately: a
silent broker gets no leaderships or replicas if another one could. Time in which this process was suspended counts as
silence only in small part.
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
    applied_index: int = 0  # last metadata index applied, by its heartbeats
    has_nats: bool = True  # from its last heartbeat
    has_keys: bool | None = None  # from its last heartbeat; None: not reported yet


class BrokerSessions:
    """One session for each live broker."""

    def __init__(self, session_us: int) -> None:
        self._session_us = session_us
        self._sessions: dict[BrokerId, _Session] = {}
        self._looked_us: int | None = None

    def restart(self, image: ClusterImage, now_us: int) -> None:
        """Begin to lead the metadata: every broker gets the full session time-out."""
        self._sessions = {}
        self._looked_us = now_us
        self.follow(image, now_us)
        for session in self._sessions.values():
            session.heard_us = None

    def follow(self, image: ClusterImage, now_us: int) -> None:
        """Follow a change of the image's brokers."""
        kept = {}
        for broker_id, broker in image.brokers.items():
            if not broker.is_live:
                continue
            session = self._sessions.get(broker_id)
            if session is None or session.incarnation != broker.incarnation:
                session = _Session(broker.incarnation, now_us + self._session_us, now_us)
            kept[broker_id] = session
        self._sessions = kept

    def heartbeat(
        self, broker_id: BrokerId, applied_index: int, now_us: int, *, has_nats: bool = True, has_keys: bool = True
    ) -> None:
        """Take a heartbeat of a live incarnation."""
        session = self._sessions[broker_id]
        session.deadline_us = now_us + self._session_us
        session.heard_us = now_us
        session.has_nats, session.has_keys = has_nats, has_keys
        session.applied_index = max(session.applied_index, applied_index)

    def silent(self, now_us: int) -> list[tuple[BrokerId, Incarnation]]:
        """The brokers whose session timed out."""
        looked_us, self._looked_us = self._looked_us, now_us
        if looked_us is not None and now_us - looked_us > self._session_us // 2:
            # This process was suspended, and heartbeats wait in its sockets. A part of the time counts all the same, so
            # that a process that is suspended again and again still fences dead brokers.
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
        """True if this metadata leader has heard of the broker's present incarnation since then."""
        session = self._sessions.get(broker_id)
        return session is not None and session.heard_us is not None and session.heard_us >= since_us

    def silent_us(self, now_us: int) -> dict[BrokerId, int]:
        """Microseconds since the last heartbeat of each live broker; before the first, since its registration."""
        begun_us = {one: session.deadline_us - self._session_us for one, session in self._sessions.items()}
        heard = {one: session.heard_us for one, session in self._sessions.items()}
        return {one: max(0, now_us - (heard[one] or begun_us[one])) for one in self._sessions}

    def without_nats(self) -> frozenset[BrokerId]:
        """The live brokers that reported to be disconnected from NATS."""
        return frozenset(broker_id for broker_id, session in self._sessions.items() if not session.has_nats)

    def without_keys(self) -> frozenset[BrokerId]:
        """The live brokers that reported that they cannot encrypt."""
        return frozenset(broker_id for broker_id, session in self._sessions.items() if session.has_keys is False)

    def keys_unsaid(self) -> frozenset[BrokerId]:
        """The live brokers that have not reported yet if they can encrypt."""
        return frozenset(broker_id for broker_id, session in self._sessions.items() if session.has_keys is None)

    def behind(self, index: int) -> tuple[BrokerId, ...]:
        """The live brokers that have not reported yet that they applied the command at `index`."""
        return tuple(broker_id for broker_id, session in self._sessions.items() if session.applied_index < index)
