"""The session of this broker with the cluster: whether what it knows can be older than a session."""

from __future__ import annotations

from penstock.node.context import Context
from penstock.node.quorum.quorum import Quorum
from penstock.node.quorum.registration import BrokerRegistration


class ClusterSession:
    """Built before the cluster, which sets `quorum` and `registration` once they are open, and `is_started`."""

    quorum: Quorum
    registration: BrokerRegistration

    def __init__(self, context: Context) -> None:
        self._context = context
        self.is_started = False  # the image has effect, for the logs are open

    @property
    def is_current(self) -> bool:
        """True while other brokers cannot have fenced this one: its image is no older than a session.

        False once this broker is leaving: a change of users is answered without waiting for such a broker.
        """
        if not self.is_started:
            return False
        standing = self.registration
        is_heard = standing.incarnation is not None and standing.is_heard(self._context.now)
        return self.quorum.is_alone or (is_heard and not standing.is_leaving)
