"""Exceptions of calls and messages.

An `ApplicationError` is what the other side answered; it travels as Thrift's TApplicationException with a number. A
`TransportError` is what happened on the way; its numbers are those of Frugal's TTransportException. Exceptions that a
contract declares are classes of generated code and stand in no table here.

| raised                | number | when                                                                             |
|-----------------------|--------|----------------------------------------------------------------------------------|
| `UnknownMethod`       |      1 | the service has no such method: another version, or the wrong subject            |
| `InvalidMessageType`  |      2 | the message is no request, or no answer                                          |
| `WrongMethodName`     |      3 | the answer is that of another method                                             |
| `BadSequenceId`       |      4 | the answer has another sequence number                                           |
| `MissingResult`       |      5 | the answer holds neither a result nor a declared exception                       |
| `InternalError`       |      6 | the handler failed in a way that the contract does not declare                   |
| `ProtocolError`       |      7 | the request could not be read                                                    |
| `CallUnauthenticated` |    401 | a middleware of the server refused the caller (our number)                       |
| `ServiceOverloaded`   |    429 | the server's queue of requests is full: nothing was done, try again (our number) |
| `ServiceDraining`     |    503 | the server stops and took no more requests: try again (our number)               |
| `TooManyCalls`        |      – | the client has its most calls in flight: nothing was sent                        |
| `CircuitOpen`         |      – | the circuit breaker of the client made no call                                   |
| `TransportClosed`     |      1 | the client, or the connection, is closed; a call that was under way may be done  |
| `DeadlineExceeded`    |      3 | the time of the call is over; it may have been done or not (408 from the server) |
| `RequestTooLarge`     |    100 | the request does not fit into a message: nothing was sent                        |
| `ResponseTooLarge`    |    101 | the answer did not fit into a message (100 when the server says so)              |
| `Disconnected`        |    102 | the connection broke while the call was under way; it may have been done or not  |
| `ServiceNotAvailable` |    103 | no server listens on the service's subject: nothing was done                     |
| `FrameError`          |      – | bytes that are no frame; `position` is the byte                                  |
| `CodecError`          |      – | bytes that are no message of the expected type, or a value that does not fit it  |
"""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import OperationalError, PenstockError


class FrugalError(PenstockError):
    """Base of the errors of calls, messages and their bytes."""

    may_be_done: bool = True
    """True if the handler may have run, or the message been sent; if not, a retry is safe for each method."""


class FrameError(FrugalError, ValueError):
    """Bytes that are no frugal-v0 frame. `position`: the byte, counted from the beginning of the frame."""

    may_be_done = False  # of an answer it is True

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what}, at byte {position} of the frame")
        self.position = position


class CodecError(FrugalError, ValueError):
    """Bytes that are no message of the expected type, or a value that does not fit its type."""

    may_be_done = False  # of an answer it is True


class ApplicationError(FrugalError):
    """An answer that is an error. `number`: that of Thrift's TApplicationException, or of ours.

    A handler or middleware of a server may raise one, and so answers with it. `was_answered`: it came from a service.
    A handler that lets that one pass answers with an `InternalError`: its caller did not ask that service.
    `correlation_id`: that of the call which was answered so; the log of the service has it.
    """

    number: int = 0
    was_answered: bool = False
    correlation_id: str = ""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        if number is not None:
            self.number = number


class UnknownMethod(ApplicationError):  # noqa: N818
    number = 1
    may_be_done = False


class InvalidMessageType(ApplicationError):  # noqa: N818
    number = 2


class WrongMethodName(ApplicationError):  # noqa: N818
    number = 3


class BadSequenceId(ApplicationError):  # noqa: N818
    number = 4


class MissingResult(ApplicationError):  # noqa: N818
    number = 5


class InternalError(ApplicationError):
    number = 6


class ProtocolError(ApplicationError):
    number = 7
    may_be_done = False


class CallUnauthenticated(ApplicationError):  # noqa: N818
    number = 401
    may_be_done = False


class ServiceOverloaded(ApplicationError):  # noqa: N818
    number = 429
    may_be_done = False


class ServiceDraining(ApplicationError):  # noqa: N818
    number = 503
    may_be_done = False


class TransportError(FrugalError, OperationalError):
    """The call did not reach the other side, or its answer did not come back. `number`: Frugal's."""

    number: ClassVar[int] = 0


class TransportClosed(TransportError):  # noqa: N818
    number = 1

    def __init__(self, message: str, *, may_be_done: bool = False) -> None:
        """`may_be_done`: the request was sent before."""
        super().__init__(message)
        self.may_be_done = may_be_done


class DeadlineExceeded(TransportError, TimeoutError):  # noqa: N818
    """The time of the call is over, as the caller or the server says. The server may have done it or not."""

    number = 3


class RequestTooLarge(TransportError):  # noqa: N818
    number = 100
    may_be_done = False


class ResponseTooLarge(TransportError):  # noqa: N818
    number = 101


class Disconnected(TransportError):  # noqa: N818
    number = 102


class ServiceNotAvailable(TransportError):  # noqa: N818
    number = 103
    may_be_done = False


class TooManyCalls(TransportError):  # noqa: N818
    """The client has its most calls in flight."""

    may_be_done = False


class CircuitOpen(TransportError):  # noqa: N818
    """The circuit breaker of the client made no call, because earlier ones failed."""

    may_be_done = False


RESPONSE_TOO_LARGE = 100
"""Frugal's number of a TApplicationException: the answer did not fit into a message."""
DEADLINE_EXCEEDED = 408
"""Our number of a TApplicationException: the time of the call was over at the server."""

_BY_NUMBER: dict[int, type[ApplicationError]] = {
    kind.number: kind
    for kind in (
        UnknownMethod,
        InvalidMessageType,
        WrongMethodName,
        BadSequenceId,
        MissingResult,
        InternalError,
        ProtocolError,
        CallUnauthenticated,
        ServiceOverloaded,
        ServiceDraining,
    )
}


def answered_error(number: int, message: str) -> FrugalError:
    """Return the exception that a caller sees for a TApplicationException."""
    if number == RESPONSE_TOO_LARGE:
        return ResponseTooLarge(message)
    if number == DEADLINE_EXCEEDED:
        return DeadlineExceeded(message)
    error = _BY_NUMBER.get(number, ApplicationError)(message, number)
    error.was_answered = True
    return error


def error_number(error: FrugalError) -> int:
    """Return the number that an error has in a TApplicationException. An error without one is an internal one."""
    match error:
        case ApplicationError():
            return error.number
        case DeadlineExceeded():
            return DEADLINE_EXCEEDED
        case ResponseTooLarge():
            return RESPONSE_TOO_LARGE
        case FrameError() | CodecError():
            return ProtocolError.number
        case _:
            return InternalError.number
