"""The steps of one API request: a generator yields questions to the node, and returns the answer.

Rules: a question goes to this broker's node, or to another broker's. Its refusal is raised in the generator as
RemoteError. Only `not_yet` is asked again, until the request's deadline: nothing was done then. Several questions at
once give their answers in order, refusals among them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import Request, Response
from penstock.node.step import Payload

_R = TypeVar("_R", bound=Response)


class Question(NamedTuple):
    """A request to a broker's node."""

    request: Request
    of: BrokerId | None = None  # None: this broker
    is_optional: bool = False  # without an answer in time the conversation gets `timed_out`, and goes on
    until: Callable[[Any], bool] | None = None  # asked again in a moment while it returns False for the answer


class Answered(NamedTuple):
    """The node's answer, and its raw part."""

    response: Response | RemoteError
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
