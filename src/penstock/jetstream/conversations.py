"""The steps of one API request: a generator yields questions to the node, and returns the answer.

Rules: a question goes to this broker's node, or to another broker's, or is a `Deed`: something that the node does and
tells the end of. Its refusal is raised in the generator as RemoteError. Only `not_yet` is asked again, until the
request's deadline: nothing was done then. Several questions at once give their answers in order, refusals among them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import Request, Response
from penstock.node.step import Payload

_R = TypeVar("_R", bound=Response)


class Deed(NamedTuple):
    """Something that this broker does. `begin` may raise RemoteError; otherwise it calls its argument once, perhaps
    before it returns, with an error or None.
    """

    begin: Callable[[Callable[[RemoteError | None], None]], None]


class Question(NamedTuple):
    """A request to a broker's node, or a deed of this broker."""

    request: Request | Deed
    of: BrokerId | None = None  # None: this broker
    is_optional: bool = False  # without an answer in time the conversation gets `timed_out`, and goes on
    until: Callable[[Any], bool] | None = None  # asked again in a moment while it returns False for the answer


class Answered(NamedTuple):
    """The node's answer, and its raw part."""

    response: Response | RemoteError | None  # None: of a deed that is done
    payload: Payload = None


Asked = tuple[Question, ...]
Conversation = Generator[Asked, list[Answered], bytes]
"""Returns the JSON of the answer. Raises ApiError or RemoteError: a refusal."""


def ask(
    request: Request,
    kind: type[_R],
    of: BrokerId | None = None,
    until: Callable[[_R], bool] | None = None,
    *,
    is_optional: bool = False,
) -> Generator[Asked, list[Answered], _R]:
    """Ask one question. Raise RemoteError."""

    def is_enough(response: Any) -> bool:
        return until is None or isinstance(response, RemoteError) or until(response)

    (answered,) = yield (Question(request, of, is_optional, is_enough),)
    response: Any = answered.response
    if isinstance(response, RemoteError):
        raise response
    assert isinstance(response, kind), response
    return response


def done(begin: Callable[[Callable[[RemoteError | None], None]], None]) -> Generator[Asked, list[Answered], None]:
    """Do something, and go on at its end. Raise RemoteError."""
    (answered,) = yield (Question(Deed(begin)),)
    if isinstance(answered.response, RemoteError):
        raise answered.response
