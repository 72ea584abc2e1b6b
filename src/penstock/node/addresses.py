"""Where the other brokers of the cluster are reached, as far as is known here.

Rules: whoever is registered, or a first voter until then, is a peer; nobody else is, whatever he says. A broker that
has moved is looked for at several places until the image tells the new one: where it was registered, where the settings
say, and where it says itself when it connects. The last matters to a broker that was away while the others moved: what
it knows is old, and what they write to its log it could not answer. Whoever answers at a place must say who it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.base.addresses import is_address
from penstock.base.ids import BrokerId
from penstock.metadata.image import BrokerState
from penstock.node.settings import Settings
from penstock.node.step import Outbox


class PeerAddresses:
    """See the module."""

    def __init__(self, settings: Settings, outbox: Outbox) -> None:
        self.members: Mapping[BrokerId, str] = {}  # as a broker has said that was asked to let this one join
        self._settings = settings
        self._outbox = outbox
        self._said: dict[BrokerId, str] = {}  # by peers, of themselves
        self._kept: dict[BrokerId, str] = {}  # what the step was told last

    def said(self, broker_id: BrokerId, address: str) -> bool:
        """A peer has said where it is; whether that is news. What cannot be an address is not listened to."""
        if not is_address(address) or broker_id not in self._kept or self._said.get(broker_id) == address:
            return False
        self._said[broker_id] = address
        return True

    def tell(self, registered: Iterable[BrokerState]) -> None:
        """Have the step keep connections to all who are peers by now, and to nobody else."""
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
    """Each of them once, with commas between."""
    return ",".join(dict.fromkeys(address for address in addresses if address))
