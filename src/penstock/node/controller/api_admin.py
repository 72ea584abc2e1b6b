"""Takes back JetStream's API at an operator's request, on the metadata leader.

Rules: the cluster never takes back by itself what it has left to another service (`metadata.api_decisions`). An
operator's request makes it wait for evidence of all brokers again, as at first; the answer does not wait for that. It
does the same where a broker holds the named prefix back that is not live, and may never be again.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import TimestampUs
from penstock.messages import ApiDecisionInfo, Response, TakeApiRequest, TakeApiResponse
from penstock.metadata.api_decisions import ApiDecision, ApiState
from penstock.metadata.commands import DecideApi
from penstock.metadata.image import CommandOutcome
from penstock.node.context import Context
from penstock.node.quorum.quorum import Quorum
from penstock.node.security.access import Authorization

Done = Callable[[Response | RemoteError], None]
_WHY = "taken back by an operator; all brokers look for another service again"


def shown(decisions: tuple[ApiDecision, ...]) -> tuple[ApiDecisionInfo, ...]:
    """Return the decisions for clients."""
    return tuple(
        ApiDecisionInfo(
            prefix=one.prefix,
            state=one.state,
            decided_us=TimestampUs(one.at_us),
            index=one.index,
            why=one.why,
            broker_id=one.broker_id or None,
            by=one.by,
            held_back_by=one.held_back_by,
        )
        for one in decisions
    )


class ApiAdmin:
    """Used by the metadata leader."""

    def __init__(self, context: Context, quorum: Quorum) -> None:
        self._context = context
        self._quorum = quorum

    def handle(self, request: TakeApiRequest, auth: Authorization, done: Done) -> None:
        """Carry out an operator's request; `done` is called once. Raise RemoteError (bad_request)."""
        apis = self._quorum.image.apis
        if request.prefix is not None and self._quorum.image.api(request.prefix) is None:
            known = ", ".join(one.prefix for one in apis) or "there is none, for no broker wants to serve it"
            raise RemoteError(
                ErrorCode.BAD_REQUEST, f"{request.prefix!r} is no prefix of JetStream's API here: {known}"
            )
        live = self._quorum.image.live_brokers()
        back = [
            one
            for one in apis
            if (one.state is ApiState.WITHDRAWN and request.prefix in (None, one.prefix))
            or (one.prefix == request.prefix and not live.issuperset(one.held_back_by))
        ]
        left = len(back)
        refusals: list[RemoteError] = []

        def decided(outcome: CommandOutcome | RemoteError) -> None:
            nonlocal left
            left -= 1
            if isinstance(outcome, RemoteError):
                refusals.append(outcome)
            if not left:
                done(refusals[0] if refusals else TakeApiResponse(apis=shown(self._quorum.image.apis)))

        if not back:
            done(TakeApiResponse(apis=shown(apis)))
        for one in back:
            command = DecideApi(
                prefix=one.prefix,
                before=one.index,
                state=ApiState.WAITING,
                decided_us=self._context.now.wall_us,
                why=_WHY,
                held_back_by=tuple(broker_id for broker_id in one.held_back_by if broker_id in live),
            )
            self._quorum.propose(auth.signed(command), decided)
