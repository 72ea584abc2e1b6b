"""Typed services over NATS: RPC and publish/subscribe from a contract, byte-compatible with Frugal.

Generated code and `load` give dataclasses, clients, publishers and subscribers; this package runs them. Programs import
from here; names are imported on first use.

| module       | content                                                                                       |
|--------------|-----------------------------------------------------------------------------------------------|
| `structs`    | base classes of structs, unions and exceptions in generated code                              |
| `contracts`  | descriptions of services and scopes that generated code carries                               |
| `context`    | the context of a call or message: correlation id, headers, deadline                           |
| `middleware` | what a middleware is, and the order in which several run                                      |
| `frames`     | frames of frugal-v0, and which header is what of a context                                    |
| `codecs`     | values and messages as Thrift's binary, compact and JSON protocols                            |
| `fitting`    | the check of a value before it is written, and the names of fields in errors                  |
| `errors`     | what goes wrong with a call or a message                                                      |
| `framing`    | a request or answer as one message: frugal-v0, and what a framing is                          |
| `native`     | the native framing: which NATS header is what of a context                                    |
| `client`     | base classes of clients, asyncio and blocking                                                 |
| `processor`  | the server's core: requests in, answers out                                                   |
| `server`     | a server on NATS subjects; `workers`: its bounded concurrency; `discovery`: `nats micro ls`   |
| `nats_transport`, `http_transport`, `local_transport` | what carries a client's requests                     |
| `scopes`     | publish/subscribe: publishers and subscribers, live and durable through streams               |
| `shipped`    | middleware: logging, metrics, tracing, authentication, retry, deadline, circuit breaker       |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.frugal.codecs import BINARY as BINARY
    from penstock.frugal.codecs import COMPACT as COMPACT
    from penstock.frugal.codecs import JSON as JSON
    from penstock.frugal.codecs import Codec as Codec
    from penstock.frugal.context import Context as Context
    from penstock.frugal.errors import ApplicationError as ApplicationError
    from penstock.frugal.errors import BadSequenceId as BadSequenceId
    from penstock.frugal.errors import CallUnauthenticated as CallUnauthenticated
    from penstock.frugal.errors import CircuitOpen as CircuitOpen
    from penstock.frugal.errors import CodecError as CodecError
    from penstock.frugal.errors import DeadlineExceeded as DeadlineExceeded
    from penstock.frugal.errors import Disconnected as Disconnected
    from penstock.frugal.errors import FrameError as FrameError
    from penstock.frugal.errors import FrugalError as FrugalError
    from penstock.frugal.errors import InternalError as InternalError
    from penstock.frugal.errors import InvalidMessageType as InvalidMessageType
    from penstock.frugal.errors import MissingResult as MissingResult
    from penstock.frugal.errors import ProtocolError as ProtocolError
    from penstock.frugal.errors import RequestTooLarge as RequestTooLarge
    from penstock.frugal.errors import ResponseTooLarge as ResponseTooLarge
    from penstock.frugal.errors import ServiceDraining as ServiceDraining
    from penstock.frugal.errors import ServiceNotAvailable as ServiceNotAvailable
    from penstock.frugal.errors import ServiceOverloaded as ServiceOverloaded
    from penstock.frugal.errors import TooManyCalls as TooManyCalls
    from penstock.frugal.errors import TransportClosed as TransportClosed
    from penstock.frugal.errors import TransportError as TransportError
    from penstock.frugal.errors import UnknownMethod as UnknownMethod
    from penstock.frugal.errors import WrongMethodName as WrongMethodName
    from penstock.frugal.http_transport import HttpServer as HttpServer
    from penstock.frugal.http_transport import HttpTransport as HttpTransport
    from penstock.frugal.local_transport import LocalTransport as LocalTransport
    from penstock.frugal.middleware import Call as Call
    from penstock.frugal.middleware import Middleware as Middleware
    from penstock.frugal.middleware import Proceed as Proceed
    from penstock.frugal.nats_transport import NatsTransport as NatsTransport
    from penstock.frugal.processor import Processor as Processor
    from penstock.frugal.scopes import MessageRejected as MessageRejected
    from penstock.frugal.scopes import MissingKeyError as MissingKeyError
    from penstock.frugal.scopes import Published as Published
    from penstock.frugal.scopes import PublishedLater as PublishedLater
    from penstock.frugal.scopes import PublishOptions as PublishOptions
    from penstock.frugal.scopes import RetryPolicy as RetryPolicy
    from penstock.frugal.scopes import ScopeFraming as ScopeFraming
    from penstock.frugal.scopes import ScopeProvider as ScopeProvider
    from penstock.frugal.scopes import SubscribeOptions as SubscribeOptions
    from penstock.frugal.scopes import Subscription as Subscription
    from penstock.frugal.scopes import UnsuitableStreamError as UnsuitableStreamError
    from penstock.frugal.server import Server as Server
    from penstock.frugal.shipped.authentication import one_of as one_of
    from penstock.frugal.shipped.authentication import require_token as require_token
    from penstock.frugal.shipped.authentication import with_token as with_token
    from penstock.frugal.shipped.call_log import log_calls as log_calls
    from penstock.frugal.shipped.circuit_breaker import CircuitBreaker as CircuitBreaker
    from penstock.frugal.shipped.deadline import limit_time as limit_time
    from penstock.frugal.shipped.metrics import CallMetrics as CallMetrics
    from penstock.frugal.shipped.retry import retry as retry
    from penstock.frugal.shipped.tracing import trace as trace
    from penstock.idl.python.load import load as load

_MODULE_OF = {
    "JSON": "penstock.frugal.codecs",
    "COMPACT": "penstock.frugal.codecs",
    "BINARY": "penstock.frugal.codecs",
    "ApplicationError": "penstock.frugal.errors",
    "BadSequenceId": "penstock.frugal.errors",
    "Call": "penstock.frugal.middleware",
    "CallMetrics": "penstock.frugal.shipped.metrics",
    "CallUnauthenticated": "penstock.frugal.errors",
    "CircuitBreaker": "penstock.frugal.shipped.circuit_breaker",
    "CircuitOpen": "penstock.frugal.errors",
    "Codec": "penstock.frugal.codecs",
    "CodecError": "penstock.frugal.errors",
    "Context": "penstock.frugal.context",
    "DeadlineExceeded": "penstock.frugal.errors",
    "Disconnected": "penstock.frugal.errors",
    "FrameError": "penstock.frugal.errors",
    "ScopeFraming": "penstock.frugal.scopes",
    "FrugalError": "penstock.frugal.errors",
    "HttpServer": "penstock.frugal.http_transport",
    "HttpTransport": "penstock.frugal.http_transport",
    "InternalError": "penstock.frugal.errors",
    "InvalidMessageType": "penstock.frugal.errors",
    "LocalTransport": "penstock.frugal.local_transport",
    "MessageRejected": "penstock.frugal.scopes",
    "Middleware": "penstock.frugal.middleware",
    "MissingKeyError": "penstock.frugal.scopes",
    "MissingResult": "penstock.frugal.errors",
    "NatsTransport": "penstock.frugal.nats_transport",
    "Proceed": "penstock.frugal.middleware",
    "Processor": "penstock.frugal.processor",
    "ProtocolError": "penstock.frugal.errors",
    "PublishOptions": "penstock.frugal.scopes",
    "Published": "penstock.frugal.scopes",
    "PublishedLater": "penstock.frugal.scopes",
    "RequestTooLarge": "penstock.frugal.errors",
    "ResponseTooLarge": "penstock.frugal.errors",
    "RetryPolicy": "penstock.frugal.scopes",
    "ScopeProvider": "penstock.frugal.scopes",
    "Server": "penstock.frugal.server",
    "ServiceDraining": "penstock.frugal.errors",
    "ServiceNotAvailable": "penstock.frugal.errors",
    "ServiceOverloaded": "penstock.frugal.errors",
    "SubscribeOptions": "penstock.frugal.scopes",
    "Subscription": "penstock.frugal.scopes",
    "TooManyCalls": "penstock.frugal.errors",
    "TransportClosed": "penstock.frugal.errors",
    "TransportError": "penstock.frugal.errors",
    "UnknownMethod": "penstock.frugal.errors",
    "UnsuitableStreamError": "penstock.frugal.scopes",
    "WrongMethodName": "penstock.frugal.errors",
    "limit_time": "penstock.frugal.shipped.deadline",
    "load": "penstock.idl.python.load",
    "log_calls": "penstock.frugal.shipped.call_log",
    "one_of": "penstock.frugal.shipped.authentication",
    "require_token": "penstock.frugal.shipped.authentication",
    "retry": "penstock.frugal.shipped.retry",
    "trace": "penstock.frugal.shipped.tracing",
    "with_token": "penstock.frugal.shipped.authentication",
}

__all__ = [
    "BINARY",
    "COMPACT",
    "JSON",
    "ApplicationError",
    "BadSequenceId",
    "Call",
    "CallMetrics",
    "CallUnauthenticated",
    "CircuitBreaker",
    "CircuitOpen",
    "Codec",
    "CodecError",
    "Context",
    "DeadlineExceeded",
    "Disconnected",
    "FrameError",
    "FrugalError",
    "HttpServer",
    "HttpTransport",
    "InternalError",
    "InvalidMessageType",
    "LocalTransport",
    "MessageRejected",
    "Middleware",
    "MissingKeyError",
    "MissingResult",
    "NatsTransport",
    "Proceed",
    "Processor",
    "ProtocolError",
    "PublishOptions",
    "Published",
    "PublishedLater",
    "RequestTooLarge",
    "ResponseTooLarge",
    "RetryPolicy",
    "ScopeFraming",
    "ScopeProvider",
    "Server",
    "ServiceDraining",
    "ServiceNotAvailable",
    "ServiceOverloaded",
    "SubscribeOptions",
    "Subscription",
    "TooManyCalls",
    "TransportClosed",
    "TransportError",
    "UnknownMethod",
    "UnsuitableStreamError",
    "WrongMethodName",
    "limit_time",
    "load",
    "log_calls",
    "one_of",
    "require_token",
    "retry",
    "trace",
    "with_token",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock.frugal' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
