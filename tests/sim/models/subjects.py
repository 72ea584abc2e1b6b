"""Further subjects of two streams, which are added and removed while messages are published on all of them.

Rules: A stream's first subject stays, since it identifies the history. A request is repeated until it is answered, so
that one change is under way at a time. Messages go on to subjects that are being added or were removed: they are stored
once, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.messages import AlterStreamRequest, AlterStreamResponse, Response
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import SentMessage
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import PlannedOperation

_AGAIN_US = 500_000
_MORE = 3  # subjects of each stream that come and go


class SubjectModels:
    """The further subjects of one run. `generations`: the current stream of each slot."""

    def __init__(
        self, around: Surroundings, generations: list[StreamGeneration | None], program: Callable[[], SimClient]
    ) -> None:
        self._around = around
        self._generations = generations
        self._program = program
        self._has: dict[str, set[str]] = {}  # by the stream's first subject
        self._changing: set[str] = set()

    def change(self, slot: int, operation: PlannedOperation) -> None:
        """Add one or two further subjects of that slot's stream, or remove them."""
        generation = self._generations[slot]
        if generation is None or not generation.stream_id or generation.config.subject in self._changing:
            return
        config = generation.config
        has = self._has.setdefault(config.subject, set())
        chosen = {_further(config, operation.number % _MORE), _further(config, operation.number // _MORE % _MORE)}
        self._changing.add(config.subject)
        self._ask(config, has, chosen - has, chosen & has)

    def _ask(self, config: StreamConfig, has: set[str], add: set[str], remove: set[str]) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._around.trace.add("client", f"subjects of {config.name}: {kind_of(response)}")
            if not isinstance(response, AlterStreamResponse):
                self._around.scheduler.after(_AGAIN_US, lambda: self._look(config, has, add, remove))
                return
            self._around.count("changes of subjects")
            has.update(add)
            has.difference_update(remove)
            assert set(response.stream.config.subjects) == {config.subject, *has}
            self._changing.discard(config.subject)

        added, removed = tuple(sorted(add)), tuple(sorted(remove))
        request = AlterStreamRequest(name=config.name, changes={}, add_subjects=added, remove_subjects=removed)
        self._program().ask(request, done)

    def _look(self, config: StreamConfig, has: set[str], add: set[str], remove: set[str]) -> None:
        """Ask again. What an unanswered request may have removed is added, since only what is there can be removed."""
        self._ask(config, has, add | remove, set())

    def prefix(self, config: StreamConfig, number: int) -> str:
        """Return the beginning of the subject for a message: that of the first one or, for one in three, of another."""
        own = config.subject.removesuffix(".>")
        if config.subject not in self._has or number % 3:
            return own
        return _further(config, number // 3 % _MORE).removesuffix(".>")

    def elsewhere(self, config: StreamConfig, message: SentMessage, number: int) -> SentMessage:
        """Return the message, perhaps on another subject of its stream."""
        own = config.subject.removesuffix(".>").encode()
        return message._replace(subject=message.subject.replace(own, self.prefix(config, number).encode(), 1))


def _further(config: StreamConfig, number: int) -> str:
    """Return a further subject; it has as many tokens as the first one."""
    return f"more{number}-{config.subject}"
