"""Addresses of the other brokers of the cluster.

Rules: registered brokers are peers, and so are the initial voters until they are registered; no other broker is,
whatever it claims. A broker that has moved is tried at several addresses until the image holds the new one: the
registered address, the one in the settings, and the one it names itself when it connects. The last matters to a broker
that was away while the others moved: its image is outdated, and it could not answer the appends they send it. A broker
that answers at an address must name its broker id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.base.addresses import is_address
from penstock.base.ids import BrokerId
from penstock.metadata.image import BrokerState
from penstock.node.settings import Settings
from penstock.node.step import Outbox


class PeerAddresses:
    """Keeps the peer addresses and has the step connect to them."""

    def __init__(self, settings: Settings, outbox: Outbox) -> None:
        self.members: Mapping[BrokerId, str] = {}  # from the broker that was asked to let this one join
        self._settings = settings
        self._outbox = outbox
        self._said: dict[BrokerId, str] = {}  # reported by peers for themselves
        self._kept: dict[BrokerId, str] = {}  # as last put into a step

    def said(self, broker_id: BrokerId, address: str) -> bool:
        """Record the address that a peer reports for itself; return True if it is new. An invalid one is ignored."""
        if not is_address(address) or broker_id not in self._kept or self._said.get(broker_id) == address:
            return False
        self._said[broker_id] = address
        return True

    def tell(self, registered: Iterable[BrokerState]) -> None:
        """Have the step connect to all current peers and drop the connections to former ones."""
        own = self._settings.broker_id
        wanted = {broker_id: address for broker_id, address in self._settings.voters.items() if broker_id != own}
        wanted |= self.members
        for one in registered:
            if one.broker_id != own:
                wanted[one.broker_id] = _joined(one.address, wanted.get(one.broker_id, ""))
        for broker_id, address in self._said.items():
            if broker_id in wanted:
                wanted[broker_id] = _joined(wanted[broker_id], address)
        if wanted == self._kept:
            return
        gone = [(broker_id, "") for broker_id in self._kept if broker_id not in wanted]
        changed = [*wanted.items(), *gone]
        self._outbox.step.peer_addresses += [one for one in changed if self._kept.get(one[0], "") != one[1]]
        self._kept = wanted


def _joined(*addresses: str) -> str:
    """Join the distinct addresses with commas."""
    return ",".join(dict.fromkeys(address for address in addresses if address))
