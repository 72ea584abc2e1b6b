"""Check of JetStream's streams in the same account: if one captures the subject of a Penstock stream, both ack.

The check lists them through JetStream's API, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.base.config import Acks, Intake
from penstock.base.errors import OperationalError
from penstock.base.subjects import overlap
from penstock.doctor.findings import Finding, bounded, ok, unknown, warn
from penstock.doctor.identities import NOBODY, Identity, Role
from penstock.doctor.permissions import Nats
from penstock.doctor.trying import ForbiddenError, RefusedError, Trial, trying
from penstock.messages import StreamInfo

_CHECK = "JetStream"
_LIST = "$JS.API.STREAM.LIST"
_NOT_ENABLED = frozenset({10039, 10076})  # disabled for this account; disabled altogether
_PAGES_MAX = 1_000
_ORDER = (Role.OPERATOR, Role.PENSTOCK, Role.PUBLISHER, Role.OTHER)


class JetStreamStream(NamedTuple):
    """One stream of JetStream."""

    name: str
    subjects: tuple[str, ...]
    acks: bool


async def judge_jetstream(nats: Nats, identities: Sequence[Identity], infos: Sequence[StreamInfo]) -> list[Finding]:
    """Report JetStream streams that overlap with ours."""
    failure = ""
    for identity in sorted((*identities, NOBODY), key=lambda one: _ORDER.index(one.role)):
        try:
            async with trying(nats.servers, identity, nats.tls, nats.timeout_ms) as trial:
                found = await _streams(trial)
        except (ForbiddenError, RefusedError):
            continue
        except (OperationalError, TimeoutError) as error:
            failure = failure or f"JetStream could not be queried: {str(error) or 'no answer in time'}"
            continue
        if found is None:
            return [ok(_CHECK, "not enabled in this account")]
        return list(_overlapping(found, infos))
    text = failure or "none of the given users may list its streams"
    return [unknown(_CHECK, text, f"give a user that may publish on {_LIST}: --as operator:FILE")]


def _overlapping(found: Sequence[JetStreamStream], infos: Sequence[StreamInfo]) -> Iterator[Finding]:
    def wrong() -> Iterator[Finding]:
        for theirs in found:
            for info in infos:
                ours = info.config
                shared = [one for one in theirs.subjects if any(overlap(one, other) for other in ours.subjects)]
                if ours.is_internal or not shared:
                    continue
                text = (
                    f"its stream {theirs.name} ({', '.join(shared)}) captures what {ours.name} "
                    f"({', '.join(ours.subjects)}) stores"
                )
                yield warn(_CHECK, f"{text}: {_outcome(theirs, info)}", _ADVICE[info.intake == Intake.PAUSED])

    yield from bounded(wrong(), ok(_CHECK, f"none of its {len(found)} streams captures what Penstock stores"))


def _outcome(theirs: JetStreamStream, ours: StreamInfo) -> str:
    """Return what happens to a message that both capture."""
    both_answer = theirs.acks and ours.config.acks is Acks.REPLY
    name = ours.config.name
    if ours.intake == Intake.PAUSED:
        return f"{name} is paused now; once it is resumed {'both ack' if both_answer else 'both store it'}"
    if ours.intake != Intake.OPEN:
        refuses = f"{name} is {ours.intake.replace('_', '-')}"
        return f"{refuses} and refuses it, and the first answer counts" if both_answer else f"{refuses}, and takes none"
    return "both ack, and the first ack counts" if both_answer else "it is stored twice"


_ADVICE = {
    False: "take one of them away, or have it ack nothing (JetStream: no_ack; here: --acks never)",
    True: "take JetStream's away before the other one is resumed (docs/how-to/move-from-jetstream.md)",
}


async def _streams(trial: Trial) -> list[JetStreamStream] | None:
    """Return all streams; None if there is no JetStream."""
    found: list[JetStreamStream] = []
    for _ in range(_PAGES_MAX):
        answered = await trial.request(_LIST, msgspec.json.encode({"offset": len(found)}))
        if not answered:
            return None
        try:
            answer = msgspec.json.decode(answered, type=dict[str, Any])
            page = [_stream(one["config"]) for one in answer.get("streams") or []]
        except (msgspec.MsgspecError, KeyError, TypeError):
            raise OperationalError("what answers there is not JetStream") from None
        if (error := answer.get("error")) is not None:
            if error.get("err_code") in _NOT_ENABLED:
                return None
            raise OperationalError(str(error.get("description", "")))
        found += page
        if not page or len(found) >= answer.get("total", 0):
            break
    return found


def _stream(config: dict[str, Any]) -> JetStreamStream:
    return JetStreamStream(config["name"], tuple(config.get("subjects") or ()), not config.get("no_ack", False))
