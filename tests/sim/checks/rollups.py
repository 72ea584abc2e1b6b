"""Check: what a rollup replaces is shown nowhere once the rollup is shown, and nothing else goes.

Rules: a message is known once it was acked or read. A message without an ack may be a rollup, and be committed: other
brokers then hide what it replaces, also a replica whose own log ends before it. So a message that is gone is held
against its rollups only if each message behind it is known, up to the highest committed_end that any leader has had.
Messages beyond that are decided on nowhere.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from penstock.testing.simulation.checks.checks import PartitionHistory
from penstock.testing.simulation.inspector import FullLook

_OF_ALL = b""  # stands for a subject: that of a rollup of all subjects


@dataclass(slots=True)
class Rollups:
    """The rollups of a stream of one partition."""

    kinds: dict[bytes, bytes] = field(default_factory=dict)  # by name of the message: "sub" or "all"
    replaced: int = 0  # looks at messages that were gone

    def may_take(
        self, offset: int, end: int, subject: bytes, known: Mapping[int, bytes], told: Mapping[bytes, bytes]
    ) -> bool:
        """True if a rollup before `end` may have taken a message on that subject: one is known, or may be unknown.

        `known`: the name of each message by offset; `told`: the subject of each name.
        """
        between = [known.get(one) for one in range(offset + 1, end)]
        return None in between or any(
            self._taken_by(name, told) in (_OF_ALL, subject) for name in between if name is not None
        )

    def _taken_by(self, name: bytes, told: Mapping[bytes, bytes]) -> bytes | None:
        """Return the subject that a message replaces; None if it is no rollup."""
        kind = self.kinds.get(name)
        return None if kind is None else _OF_ALL if kind == b"all" else told[name]

    def mistake(
        self, look: FullLook, history: PartitionHistory, told: Mapping[bytes, bytes], deleted: Container[int]
    ) -> str:
        """Return what a replica shows and must not, or no longer shows and must; empty if all is right.

        `deleted`: offsets of messages that may have been deleted.
        """
        later: set[bytes] = set()  # subjects with a rollup behind the present offset
        shown: dict[bytes, int] = {}  # … with one that the replica shows, and its offset
        is_whole = True  # all messages behind the present one are known
        for offset in range(history.committed_end - 1, -1, -1):
            if (name := history.known.get(offset)) is None:
                is_whole = False
                continue
            subject = told[name]
            is_shown = look.log_start <= offset < look.visible_end and offset not in look.hidden
            if is_shown and (beside := {_OF_ALL, subject} & shown.keys()):
                return f"shows {offset} beside the rollups {beside} of {shown}"
            is_gone = offset < look.log_start or offset in look.hidden
            if is_gone and is_whole and not {_OF_ALL, subject} & later and offset not in deleted:
                return f"shows {offset} no more, and no rollup replaced it"
            self.replaced += is_gone
            if (taken := self._taken_by(name, told)) is not None:
                later.add(taken)
                if is_shown:
                    shown.setdefault(taken, offset)
        return ""
