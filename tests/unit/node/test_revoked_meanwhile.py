"""Changes that wait for a metadata leader while the permission to make them is revoked, and the revocation is answered.

A broker without contact keeps bob's request; the others revoke, and it comes back within the request's time-out.
"""

from __future__ import annotations

import msgspec
import pytest

from penstock.access import CredentialKind, Operation, Rule
from penstock.access.handshake import Principal
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.groups.rows import OFFSETS_STREAM
from penstock.messages import (
    AlterUserRequest,
    ChangeRulesRequest,
    CreateStreamRequest,
    CreateUserRequest,
    DeleteUserRequest,
    OffsetsStreamRequest,
    ReportArchivedRequest,
    Request,
)
from tests.unit.node.members import Member, Proven
from tests.unit.node.security.test_access import credential, user, who

CREATE = Rule(Operation.CREATE, subject="bob.>")
ARCHIVE = Rule(Operation.COMMIT_OFFSETS, stream="s")
REVOCATIONS = {
    "token": AlterUserRequest(name="bob", drop=("leaked",)),
    "user": DeleteUserRequest(name="bob"),
    "rules": ChangeRulesRequest(name="bob", drop=(CREATE, ARCHIVE)),
}


class Guarded:
    """A cluster with ann, who rules, and bob, who has a token; `away` has bob's request and no contact."""

    def __init__(self, *, leads: bool) -> None:
        """`leads`: whether `away` leads the stream `s`."""
        self.brokers = brokers = Proven(1, 2, 3)
        brokers.run(5_000)
        brokers.leader.create("s", subject="s", replicas=3)
        brokers.run(500)
        brokers.leader.request(user("ann", Rule(Operation.ADMIN)))
        brokers.run(5_000)
        for member in brokers.members.values():
            member.who = who(member, "ann")
        brokers.led("s").publish("s", b"one")
        token = msgspec.structs.replace(credential(), credential_id="leaked", kind=CredentialKind.TOKEN, iterations=1)
        request = CreateUserRequest(name="bob", credentials=(credential(), token), rules=(CREATE, ARCHIVE))
        brokers.leader.request(request)
        brokers.run(2_000)
        led = brokers.led("s")
        others = (one for one in brokers.members.values() if one not in (led, brokers.leader))
        self.away: Member = led if leads else next(others)
        bob = self.away.image.user("bob")
        self.away.who = Principal("bob", bob.made_index, "leaked", bob.credential("leaked").mark)

    def answer(self, request: Request, revocation: Request | None) -> object:
        """Ask while out of contact, revoke, come back; return the answer."""
        brokers, away = self.brokers, self.away
        others = [one for one in brokers.ids if one != away.broker_id]
        for other in others:
            brokers.cut(away.broker_id, other)
        asked = away.request(request)
        brokers.run(100)
        assert asked not in away.replies
        if revocation is not None:
            leader = next(one for one in brokers.members.values() if one is not away)
            revoked = leader.request(revocation)
            while revoked not in leader.replies:
                brokers.run(100)
            assert not isinstance(leader.replies[revoked].response, RemoteError)
        brokers.join(away.broker_id, *others)
        brokers.run(8_000)
        return away.replies[asked].response


@pytest.mark.parametrize("how", REVOCATIONS)
@pytest.mark.parametrize("config", ["stream", "offsets"])
def test_no_stream_is_created(how: str, config: str) -> None:
    cluster = Guarded(leads=False)
    request: Request = OffsetsStreamRequest(timeout_ms=30_000)
    if config == "stream":
        request = CreateStreamRequest(config=StreamConfig(name="evil", subject="bob.>"), timeout_ms=30_000)
    response = cluster.answer(request, REVOCATIONS[how])
    assert isinstance(response, RemoteError)
    assert response.code == (ErrorCode.NOT_AUTHORIZED if how == "rules" else ErrorCode.UNAUTHENTICATED)
    assert not {"evil", OFFSETS_STREAM} & set(cluster.brokers.leader.image.names)


@pytest.mark.parametrize("how", REVOCATIONS)
def test_no_archive_is_reported(how: str) -> None:
    cluster = Guarded(leads=True)
    stream_id = cluster.away.stream_id("s")
    report = ReportArchivedRequest(stream_id=stream_id, partition=PartitionId(0), archive="a", end_offset=Offset(1))
    response = cluster.answer(report, REVOCATIONS[how])
    assert isinstance(response, RemoteError)
    # A try before that got no answer, so it may have succeeded.
    assert response.code == ErrorCode.TIMED_OUT
    assert "; since then: " in response.message


def test_what_is_not_revoked_is_done_as_before() -> None:
    cluster = Guarded(leads=False)
    request = CreateStreamRequest(config=StreamConfig(name="good", subject="bob.>"), timeout_ms=30_000)
    assert not isinstance(cluster.answer(request, None), RemoteError)
    assert "good" in cluster.brokers.leader.image.names
