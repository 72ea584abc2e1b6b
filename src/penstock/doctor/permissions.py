"""What NATS allows whom, and what to think of it. `trying` asks; nothing is published into a stream.

A message is stored and acked because it is on a subject. So whoever may subscribe there reads all of it, whoever may
publish there writes, and whoever may publish in inboxes can forge an ack: only NATS can forbid that.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from penstock.base.config import StreamConfig
from penstock.base.errors import OperationalError
from penstock.base.subjects import overlap
from penstock.broker.nats_credentials import NatsServer, TlsFiles
from penstock.doctor.findings import Finding, fail, listed, ok, unknown, warn
from penstock.doctor.identities import NOBODY, Identity, Role
from penstock.doctor.trying import NotToldError, RefusedError, Trial, own_subject, trying

PAGE = "docs/how-to/nats-permissions.md"
_CHECK = "NATS permissions"
_Bad = Callable[[str, str, str], Finding]  # `warn` or `fail`
_SAMPLE = "penstock-doctor"  # a token in the place of a wildcard


@dataclass(frozen=True, slots=True)
class Nats:
    """Where NATS is, and how it is reached."""

    servers: tuple[NatsServer, ...]
    tls: TlsFiles
    timeout_ms: int
    is_private: bool  # only this machine reaches it: what is open there is open to few
    is_embedded: bool = False  # a broker has started it
    has_users: bool = False  # Penstock has everybody log in: what is open in NATS goes past its rules

    @property
    def bad(self) -> _Bad:
        """The result where a permission is too wide: a failure, or on a private server a warning."""
        return warn if self.is_private and not self.has_users else fail

    @property
    def remedy(self) -> str:
        """The advice for a nats-server without permissions."""
        if self.is_embedded and self.has_users:
            return "restart the broker (with --brokers, all of them): its nats-server has a login then"
        return f"give everybody a user with permissions in nats-server.conf ({PAGE})"


async def judge_permissions(
    nats: Nats, identities: Sequence[Identity], configs: Sequence[StreamConfig]
) -> AsyncIterator[Finding]:
    """Everybody's permissions, and those of who has no credentials; `configs` of all streams."""
    heard = [config for config in configs if not config.is_internal]
    for identity in (*identities, NOBODY):
        if identity.role is Role.OPERATOR:
            continue
        try:
            async with trying(nats.servers, identity, nats.tls, nats.timeout_ms) as trial:
                if identity.role is Role.PENSTOCK:
                    found = await _of_penstock(trial, identity, heard)
                else:
                    found = await _of_others(trial, identity, heard, nats)
        except RefusedError as error:
            if identity is NOBODY:
                found = [ok(_CHECK, "nobody gets in without credentials")]
            else:
                found = [fail(_CHECK, f"{identity.name} is not let in: {error}", "check the file and nats-server.conf")]
        except NotToldError as error:
            found = [unknown(_CHECK, f"{identity.name}: {error}", "what it may publish is to be looked up by hand")]
        except (OperationalError, TimeoutError) as error:
            text = str(error) or "no answer in time"
            found = [unknown(_CHECK, f"NATS cannot be reached from here: {text}", "say with --nats where it is")]
        for one in found:
            yield one
    if not any(identity.role is Role.PENSTOCK for identity in identities):
        text = "whether the brokers' own user may do what it must was not tried"
        yield unknown(
            _CHECK, text, "--as penstock:FILE with its credentials; `partitions` and `NATS` say how it is now"
        )


async def _of_penstock(trial: Trial, who: Identity, configs: Sequence[StreamConfig]) -> list[Finding]:
    by_subject = {config.subject_of(number): config for config in configs for number in range(config.partitions)}
    allowed = await trial.may_subscribe(by_subject)
    refused = [subject for subject, is_allowed in allowed.items() if not is_allowed]
    found = []
    if alone := [subject for subject in refused if not by_subject[subject].competes]:
        text = f"{who.name} may not subscribe to {listed(alone)}: nothing of it is stored"
        found.append(fail(_CHECK, text, f"allow it: `subscribe` in nats-server.conf ({PAGE})"))
    if in_groups := [subject for subject in refused if by_subject[subject].competes]:
        text = f"{who.name} may not subscribe to {listed(in_groups)} but perhaps in the stream's queue group"
        found.append(unknown(_CHECK, text, "not tried: that would take messages away; see `partitions`"))
    if any(config.acks != "never" for config in configs):
        found += await _answering(trial, who)
    if not found:
        found.append(ok(_CHECK, f"{who.name} may hear every stream's subject, and answer"))
    return found


async def _answering(trial: Trial, who: Identity) -> list[Finding]:
    may_answer = await trial.may_answer(_inbox())
    if may_answer:
        return []
    advice = f'allow `publish: "_INBOX.>"`, or `allow_responses` ({PAGE})'
    if may_answer is None:
        text = f"{who.name} may publish on _INBOX.> only with `allow_responses`, if it has that"
        return [unknown(_CHECK, text, f"to have it tried allow $PENSTOCK.doctor.>, else look it up ({PAGE})")]
    return [fail(_CHECK, f"{who.name} may not answer publishers: none gets an ack", advice)]


def _inbox() -> str:
    return f"_INBOX.{_SAMPLE}.{secrets.token_hex(8)}"


async def _of_others(trial: Trial, who: Identity, configs: Sequence[StreamConfig], nats: Nats) -> list[Finding]:
    bad = nats.bad
    subjects = {config.subject: sample(config.subject) for config in configs}
    hears = await trial.may_subscribe([*subjects, *subjects.values(), "_INBOX.>"])
    heard = [one for one, plain in subjects.items() if hears[one] or hears[plain]]
    foreign = [one for one in subjects if not any(overlap(own, one) for own in who.subjects)]
    inbox, anything = _inbox(), own_subject()
    publishes = await trial.may_publish([*(subjects[one] for one in foreign), inbox, anything])
    written = [one for one in foreign if publishes[subjects[one]]]
    if hears["_INBOX.>"] and publishes[inbox] and publishes[anything] and len(heard) == len(subjects):
        text = f"{who.name} may hear all streams and publish anywhere: there are no permissions"
        return [bad(_CHECK, text, nats.remedy)]
    found = []
    if heard:
        text = f"{who.name} may subscribe to {listed(heard)}: it reads all that is published there"
        found.append(bad(_CHECK, text, f"only Penstock's user and who must read it from NATS may ({PAGE})"))
    if written and who.role is Role.PUBLISHER and not who.subjects:
        text = f"{who.name} may publish on {listed(written)}"
        found.append(
            unknown(_CHECK, text, "if these are not all its own, name those that are: --as publisher:FILE:SUBJECT")
        )
    elif written:
        text = f"{who.name} may publish on {listed(written)}: it writes into their streams"
        found.append(bad(_CHECK, text, f"allow each publisher its own subjects ({PAGE})"))
    elif publishes[anything]:
        text = f"{who.name} may publish where nobody expects it, such as on {anything}"
        found.append(warn(_CHECK, text, f"allow each publisher its own subjects ({PAGE})"))
    if publishes[inbox]:
        text = f"{who.name} may publish on _INBOX.>: it can forge acks"
        found.append(warn(_CHECK, text, f"only Penstock's user needs that ({PAGE})"))
    if hears["_INBOX.>"]:
        text = f"{who.name} may subscribe to _INBOX.>: it reads the acks of others"
        found.append(warn(_CHECK, text, f"give each an inbox of its own, such as _INBOX.shop.> ({PAGE})"))
    found += await _own_subjects(trial, who)
    if not found:
        keeps = f" and publishes on {listed(who.subjects)} only" if who.subjects else " and publishes into none"
        found.append(ok(_CHECK, f"{who.name} hears no stream{keeps}"))
    return found


async def _own_subjects(trial: Trial, who: Identity) -> list[Finding]:
    own = await trial.may_publish([sample(one) for one in who.subjects])
    if missing := [one for one in who.subjects if not own[sample(one)]]:
        text = f"{who.name} may not publish on {listed(missing)}, which it should"
        return [fail(_CHECK, text, f"allow it: `publish` in nats-server.conf ({PAGE})")]
    return []


def sample(pattern: str) -> str:
    """A plain subject that the pattern covers."""
    return ".".join(_SAMPLE if token in ("*", ">") else token for token in pattern.split("."))
