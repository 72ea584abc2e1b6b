"""Raises the cluster's feature level, on the metadata leader.

Rules: it is raised only at an administrator's request, once every broker of the cluster can, and never lowered: see
`metadata.feature_levels`. The request is answered once every live broker has applied the level, so that each of them
accepts what is new from then on. The levels are checked again when the command is applied.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import RaiseFeatureLevelRequest, RaiseFeatureLevelResponse, Response
from penstock.metadata.commands import RaiseFeatureLevel
from penstock.metadata.effects.brokers import gaining_marks
from penstock.metadata.effects.streams import check_room
from penstock.metadata.feature_levels import LEVELS, FeatureLevel, level_of, level_text
from penstock.metadata.image import CommandOutcome
from penstock.node.context import Context
from penstock.node.controller.apply_barriers import ClusterApplyBarrier
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.quorum import Quorum
from penstock.node.security.access import Authorization

Done = Callable[[Response | RemoteError], None]


class FeatureLevelAdmin:
    """Used by the metadata leader."""

    def __init__(self, context: Context, quorum: Quorum, peers: PeerClient) -> None:
        self._context = context
        self._quorum = quorum
        self._all = ClusterApplyBarrier(context, quorum, peers)

    def handle(self, request: RaiseFeatureLevelRequest, auth: Authorization, done: Done) -> None:
        """Carry out an administrator's request; `done` is called once.

        RemoteError bad_request: an unknown level; too_large: no room for the companion logs that streams get by it.
        """
        deadline_us = self._context.now.elapsed_us + limits.FORWARD_TIMEOUT_MS * 1_000
        wanted = self._level(request.feature_level)
        if added := sum(len(state.partitions) for state in gaining_marks(self._context.image, wanted)):
            check_room(self._context.image, added, streams=0)
        index = 0

        def placed(at: int, raft_term: int) -> None:
            nonlocal index
            index = at

        def raised(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                done(outcome)
                return
            response = RaiseFeatureLevelResponse(
                feature_level=level_text(wanted), index=index if outcome.changed else 0
            )
            self._all.wait(index, deadline_us, lambda error: done(response if error is None else error))

        self._quorum.propose(auth.signed(RaiseFeatureLevel(feature_level=wanted)), raised, placed)

    def _level(self, text: str | None) -> FeatureLevel:
        newest = level_of(self._context.settings.broker_version)
        known = {level_text(level): level for level in LEVELS if level <= newest}
        if text is None:
            return newest
        if text not in known:
            names = ", ".join(known)
            raise RemoteError(ErrorCode.BAD_REQUEST, f"{text!r} is no feature level of the metadata leader's: {names}")
        return known[text]

    def tick(self, now: Now) -> None:
        self._all.tick(now)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        return self._all.next_deadline_us

    def stop(self, error: RemoteError) -> None:
        """Fail pending requests, because this broker is deposed or stops."""
        self._all.stop(error)
