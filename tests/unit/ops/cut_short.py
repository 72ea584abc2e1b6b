"""Ends a program at each of its requests that change something: before it is sent, and before it is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.client.link.link import Link
from penstock.messages import (
    AlterStreamRequest,
    AppendAtRequest,
    AskConsumersRequest,
    CommitOffsetsRequest,
    ConsumerOperation,
    CreateStreamRequest,
    SetIntakeRequest,
    TruncateRequest,
)

_CHANGES = (
    AlterStreamRequest,
    AppendAtRequest,
    CommitOffsetsRequest,
    CreateStreamRequest,
    SetIntakeRequest,
    TruncateRequest,
)


class ProgramEndedError(Exception):
    """The program ends here, like one that is killed."""


def each_end(run: Callable[[], object]) -> Iterator[str]:
    """Call `run` again and again, each time ended at a later change; yield that change. The last run is not ended."""
    number = 0
    while (ended_at := _ended(run, number)) is not None:
        yield ended_at
        number += 1


def _ended(run: Callable[[], object], number: int) -> str | None:
    call, seen = Link.call, [0]
    target, is_sent = divmod(number, 2)

    async def counted(link: Link, request: Any, *args: Any, **options: Any) -> Any:
        is_restored = isinstance(request, AskConsumersRequest) and request.operation is ConsumerOperation.RESTORE
        if not (is_restored or isinstance(request, _CHANGES)):
            return await call(link, request, *args, **options)
        is_here, seen[0] = seen[0] == target, seen[0] + 1
        if is_here and not is_sent:
            raise ProgramEndedError(f"before {type(request).__name__}")
        answer = await call(link, request, *args, **options)
        if is_here:
            raise ProgramEndedError(f"after {type(request).__name__}")
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "call", counted)
        try:
            run()
        except ProgramEndedError as error:
            return str(error)
    return None
