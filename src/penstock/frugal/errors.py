"""What goes wrong with a call or a message, as exceptions.

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
| `DeadlineExceeded`    |    408 | the time of the call was over at the server (our number), or at the caller       |
| `ServiceOverloaded`   |    429 | the server's queue of requests is full: nothing was done, try again (our number) |
| `ServiceDraining`     |    503 | the server stops and took no more requests: try again (our number)               |
| `CircuitOpen`         |      – | the circuit breaker of the client made no call                                   |
| `TransportClosed`     |      1 | the client, or the connection, is closed                                         |
| `DeadlineExceeded`    |      3 | the time of the call is over; the server may have done it or not                 |
| `RequestTooLarge`     |    100 | the request does not fit into a message: nothing was sent                        |
| `ResponseTooLarge`    |    101 | the answer did not fit into a message (100 when the server says so)              |
| `Disconnected`        |    102 | the connection broke while the call was under way; it may have been done or not  |
| `ServiceNotAvailable` |    103 | nobody listens on the service's subject: nothing was done                        |
| `FrameError`          |      – | bytes that are no frame; `position` is the byte                                  |
| `CodecError`          |      – | bytes that are no message of the expected type, or a value that does not fit it  |
"""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import OperationalError, PenstockError


class FrugalError(PenstockError):
    """Base of the errors of calls, messages and their bytes."""


class FrameError(FrugalError, ValueError):
    """Bytes that are no frugal-v0 frame. `position`: the byte, counted from the beginning of the frame."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what}, at byte {position} of the frame")
        self.position = position


class CodecError(FrugalError, ValueError):
    """Bytes that are no message of the expected type, or a value that does not fit its type."""


class ApplicationError(FrugalError):
    """The other side answered with an error. `number`: that of Thrift's TApplicationException, or of ours."""

    number: int = 0
    may_be_done: ClassVar[bool] = True
    """Whether the handler may have run: else a retry is safe for each method."""

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
    may_be_done: ClassVar[bool] = True


class TransportClosed(TransportError):  # noqa: N818
    number = 1
    may_be_done = False


class DeadlineExceeded(TransportError, ApplicationError, TimeoutError):  # noqa: N818
    """The time of the call is over. The server may have done it or not."""

    number = 3  # type: ignore[misc]  # over the wire it is 408


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


class CircuitOpen(TransportError):  # noqa: N818
    """The circuit breaker of the client made no call, because earlier ones failed."""

    may_be_done = False
