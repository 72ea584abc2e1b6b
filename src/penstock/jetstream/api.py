"""All operations of JetStream's API that this gateway serves."""

from __future__ import annotations

from collections.abc import Callable

from penstock.jetstream.account import account_handlers
from penstock.jetstream.gateway import ALL_RIGHTS, ApiRights, Gateway
from penstock.jetstream.node_access import GatewayNode
from penstock.jetstream.readers.deliveries import Deliveries
from penstock.jetstream.readers.handlers import ConsumerApi
from penstock.jetstream.readers.table import Readers
from penstock.jetstream.removals import removal_handlers
from penstock.jetstream.streams import stream_handlers

_HANDLERS = (account_handlers, stream_handlers, removal_handlers)


def jetstream_gateway(
    node: GatewayNode,
    *,
    prefixes: tuple[str, ...],
    deliveries: Deliveries,
    new_name: Callable[[], str],
    unsent_bytes: Callable[[], int],
    domain: str = "",
    rights: ApiRights = ALL_RIGHTS,
) -> Gateway:
    """Return the gateway with the handlers of every operation. `new_name` names consumers that have no name."""
    gateway = Gateway(node, prefixes=prefixes, unsent_bytes=unsent_bytes, domain=domain, rights=rights)
    for handlers in _HANDLERS:
        gateway.handlers.update(handlers(gateway))
    gateway.handlers.update(gateway.lookups.handlers)
    readers = Readers(gateway, deliveries)
    gateway.parts.append(readers)
    gateway.count_consumers = readers.count
    gateway.reader_numbers = readers.numbers
    gateway.stored_numbers = readers.stored_numbers
    consumers = ConsumerApi(gateway, readers, new_name)
    gateway.handlers.update(consumers.handlers())
    gateway.talks.update(consumers.talks())
    gateway.talks.update(consumers.own_talks())
    return gateway
