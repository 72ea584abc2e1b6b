"""Publish/subscribe by scopes, over NATS and durable through Penstock streams.

    provider = ScopeProvider(nats, client=client)
    await OrdersPublisher(provider).publish_Placed(Context(), "eu", order)
    async with await OrdersSubscriber(provider).subscribe_Placed("*", handle, group="billing") as subscription:
        await subscription.wait()

| module                 | content                                                                            |
|------------------------|------------------------------------------------------------------------------------|
| `provider`             | what publishers and subscribers share: connections, codec, framing, middleware     |
| `publisher`            | `ScopePublisher`, the base of generated publishers                                 |
| `subscriber`           | `ScopeSubscriber`, the base of generated subscribers                               |
| `options`              | types of the keyword arguments of both                                             |
| `subjects`             | the subjects of a scope                                                            |
| `framing`              | messages as bytes, and back                                                        |
| `keys`                 | the key of a message                                                               |
| `streams`              | streams that keep scopes: found, created, checked                                  |
| `subscriptions`        | `Subscription`, and what every message goes through                                |
| `nats_subscription`    | a live subscription                                                                |
| `durable_subscription` | a durable one, over a `DurableSource`                                              |
| `durable`              | `DurableSource` and `Delivery`: what a durable subscription reads from             |
| `group_source`         | the source over a consumer group, with retries in the subscriber                   |
| `partition_feed`       | reads one partition for it                                                         |
| `redelivery`           | its core: retries, dead letters, commits, without IO                               |
| `dead_letters`         | the stream of what no handler could take                                           |
"""

from penstock.frugal.scopes.durable import Delivery, DurableSource
from penstock.frugal.scopes.framing import ScopeFraming
from penstock.frugal.scopes.keys import MissingKeyError
from penstock.frugal.scopes.options import PublishOptions, SubscribeOptions
from penstock.frugal.scopes.provider import ScopeProvider
from penstock.frugal.scopes.publisher import Published, PublishedLater, ScopePublisher
from penstock.frugal.scopes.redelivery import RetryPolicy
from penstock.frugal.scopes.streams import UnsuitableStreamError
from penstock.frugal.scopes.subscriber import ScopeSubscriber
from penstock.frugal.scopes.subscriptions import Handler, MessageRejected, Subscription

__all__ = [
    "Delivery",
    "DurableSource",
    "Handler",
    "MessageRejected",
    "MissingKeyError",
    "PublishOptions",
    "Published",
    "PublishedLater",
    "RetryPolicy",
    "ScopeFraming",
    "ScopeProvider",
    "ScopePublisher",
    "ScopeSubscriber",
    "SubscribeOptions",
    "Subscription",
    "UnsuitableStreamError",
]
