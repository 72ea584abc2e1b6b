"""Checks of NATS permissions, with `trying`; nothing is published into a stream.

A message is stored and acked because it is on a subject. So a client that may subscribe there can read all of it, one
that may publish there can write, and one that may publish to inboxes can forge acks: only NATS can forbid that.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.base.config import StreamConfig
from penstock.base.errors import OperationalError
from penstock.base.subjects import overlap
from penstock.broker.security.nats_credentials import NatsServer, TlsFiles
from penstock.doctor.findings import Finding, fail, listed, ok, unknown, warn
from penstock.doctor.identities import NOBODY, Identity, Role
from penstock.doctor.trying import NotToldError, RefusedError, Trial, own_subject, trying

PAGE = "docs/how-to/nats-permissions.md"
API_PAGE = f"{PAGE}#with-jetstreams-api"
_CHECK = "NATS permissions"
_API_STREAMS_MAX = 200  # whose subjects of JetStream's API are tested
_Bad = Callable[[str, str, str], Finding]  # `warn` or `fail`
_SAMPLE = "penstock-doctor"  # replaces a wildcard token


@dataclass(frozen=True, slots=True)
class Nats:
    """Address of NATS and its environment."""

    servers: tuple[NatsServer, ...]
    tls: TlsFiles
    timeout_ms: int
    is_private: bool  # reachable from this machine only: open permissions concern few clients
    is_embedded: bool = False  # started by a broker
    has_users: bool = False  # Penstock requires a login: open NATS permissions bypass its rules
    cluster_id: str = ""
    api_prefixes: tuple[str, ...] = ()  # of JetStream's API, if a broker is to serve it
    api_manages: bool = False  # its callers may change streams

    @property
    def bad(self) -> _Bad:
        """Result for excessive permissions: a failure, or a warning on a private server without users."""
        return warn if self.is_private and not self.has_users else fail

    @property
    def remedy(self) -> str:
        """Advice for a nats-server without permissions."""
        if self.is_embedded and self.has_users:
            return "restart the broker (with --brokers, all of them): its nats-server has a login then"
        if self.is_embedded:
            return f"start the broker with --auth, or with a nats-server of your own (--nats) that has users ({PAGE})"
        return f"give every client a user with permissions in nats-server.conf ({PAGE})"


async def judge_permissions(
    nats: Nats, identities: Sequence[Identity], configs: Sequence[StreamConfig]
) -> AsyncIterator[Finding]:
    """Check the permissions of all identities, and of clients without credentials; `configs` of all streams."""
    heard = [config for config in configs if not config.is_internal]
    for identity in (*identities, NOBODY):
        if identity.role is Role.OPERATOR:
            continue
        try:
            async with trying(nats.servers, identity, nats.tls, nats.timeout_ms) as trial:
                if identity.role is Role.PENSTOCK:
                    found = await _of_penstock(trial, identity, heard, nats.api_prefixes)
                else:
                    found = await _of_others(trial, identity, heard, nats)
        except RefusedError as error:
            if identity is NOBODY:
                found = [ok(_CHECK, "NATS refuses clients without credentials")]
            else:
                found = [
                    fail(_CHECK, f"{identity.name} is refused by NATS: {error}", "check the file and nats-server.conf")
                ]
        except NotToldError as error:
            found = [unknown(_CHECK, f"{identity.name}: {error}", "check by hand what it may publish")]
        except (OperationalError, TimeoutError) as error:
            text = str(error) or "no answer in time"
            found = [unknown(_CHECK, f"NATS cannot be reached from here: {text}", "give its address with --nats")]
        for one in found:
            yield one
    if not any(identity.role is Role.PENSTOCK for identity in identities):
        text = "the permissions of the brokers' own user were not tested"
        yield unknown(
            _CHECK, text, "--as penstock:FILE with its credentials; `partitions` and `NATS` say how it is now"
        )


async def _of_penstock(
    trial: Trial, who: Identity, configs: Sequence[StreamConfig], api_prefixes: Sequence[str]
) -> list[Finding]:
    by_subject = {
        subject: config
        for config in configs
        for number in range(config.partitions)
        for subject in config.subjects_of(number)
    }
    allowed = await trial.may_subscribe(by_subject)
    refused = [subject for subject, is_allowed in allowed.items() if not is_allowed]
    found = []
    if alone := [subject for subject in refused if not by_subject[subject].competes]:
        text = f"{who.name} may not subscribe to {listed(alone)}: nothing of it is stored"
        found.append(fail(_CHECK, text, f"allow it: `subscribe` in nats-server.conf ({PAGE})"))
    if in_groups := [subject for subject in refused if by_subject[subject].competes]:
        text = f"{who.name} may not subscribe to {listed(in_groups)}, except perhaps in the stream's queue group"
        found.append(unknown(_CHECK, text, "not tested: that would take messages away; see `partitions`"))
    if any(config.acks != "never" for config in configs):
        found += await _answering(trial, who)
    if api_prefixes:
        found += await _serving(trial, who, configs, api_prefixes)
    if not found:
        found.append(ok(_CHECK, f"{who.name} may subscribe to every stream's subject, and answer"))
    return found


async def _serving(
    trial: Trial, who: Identity, configs: Sequence[StreamConfig], prefixes: Sequence[str]
) -> Iterator[Finding]:
    """Check what brokers need for JetStream's API."""
    names = [config.name for config in configs][:_API_STREAMS_MAX]
    subjects = [
        *(f"{prefix}>" for prefix in prefixes),
        *(f"$JS.FC.{name}.*.*" for name in names),
        *(f"_INBOX.{word}.{_SAMPLE}" for word in ("penstock", "penstock-leaf")),
    ]
    hears = await trial.may_subscribe(subjects)
    asks = await trial.may_publish([f"{prefix}INFO" for prefix in prefixes])
    text = f"{who.name} may not %s %s: JetStream's API does not work, or not all of it"
    missing = (
        ("subscribe to", [one for one in subjects if not hears[one]]),
        ("publish on", [one for one, is_allowed in asks.items() if not is_allowed]),
    )
    return iter([fail(_CHECK, text % (verb, listed(some)), f"allow it ({API_PAGE})") for verb, some in missing if some])


async def _calling(trial: Trial, who: Identity, configs: Sequence[StreamConfig], nats: Nats) -> Iterator[Finding]:
    """Check what a client may do through JetStream's API."""
    streams = {config.name: sample(config.subject) for config in configs[:_API_STREAMS_MAX]}
    reads = {
        f"{prefix}{operation}": name
        for prefix in nats.api_prefixes
        for name, subject in streams.items()
        for operation in (
            f"STREAM.MSG.GET.{name}", f"DIRECT.GET.{name}", f"DIRECT.GET.{name}.{subject}",
            f"CONSUMER.CREATE.{name}", f"CONSUMER.CREATE.{name}.{_SAMPLE}",
        )
    }  # fmt: skip
    changes = {
        f"{prefix}STREAM.{operation}.{name}": name
        for prefix in nats.api_prefixes
        for name in streams
        for operation in ("UPDATE", "DELETE", "PURGE", "MSG.DELETE")
    }
    allowed = await trial.may_publish([*reads, *changes])
    changed = sorted({name for one, name in changes.items() if allowed[one]})
    read = {name for one, name in reads.items() if allowed[one]}
    found = []
    if changed and nats.api_manages:
        text = f"{who.name} may change and delete {listed(changed)} through JetStream's API"
        found.append(nats.bad(_CHECK, text, f"only administrators need that ({API_PAGE})"))
    own = {one.name for one in configs if any(overlap(own, each) for own in who.subjects for each in one.subjects)}
    if others := sorted(read.difference(who.streams, own)):
        text = f"{who.name} may read {listed(others)} through JetStream's API"
        advice = f"name what is its own, --as reader:FILE:STREAM, or forbid it ({API_PAGE})"
        found.append(nats.bad(_CHECK, text, advice))
    if missing := sorted(set(who.streams) - read):
        text = f"{who.name} may not read {listed(missing)} through JetStream's API, which it should"
        found.append(fail(_CHECK, text, f"allow it: `publish` in nats-server.conf ({API_PAGE})"))
    return iter(found)


async def _answering(trial: Trial, who: Identity) -> list[Finding]:
    may_answer = await trial.may_answer(_inbox())
    if may_answer:
        return []
    advice = f'allow `publish: "_INBOX.>"`, or `allow_responses` ({PAGE})'
    if may_answer is None:
        text = f"{who.name} may publish on _INBOX.> only with `allow_responses`, if it has that"
        return [unknown(_CHECK, text, f"to have it tested allow $PENSTOCK.doctor.>, else check by hand ({PAGE})")]
    return [fail(_CHECK, f"{who.name} may not answer publishers: none gets an ack", advice)]


def _inbox() -> str:
    return f"_INBOX.{_SAMPLE}.{secrets.token_hex(8)}"


async def _of_others(trial: Trial, who: Identity, configs: Sequence[StreamConfig], nats: Nats) -> list[Finding]:
    bad = nats.bad
    subjects = {subject: sample(subject) for config in configs for subject in config.subjects}
    hears = await trial.may_subscribe([*subjects, *subjects.values(), "_INBOX.>"])
    heard = [one for one, plain in subjects.items() if hears[one] or hears[plain]]
    foreign = [one for one in subjects if not any(overlap(own, one) for own in who.subjects)]
    inbox, anything = _inbox(), own_subject()
    publishes = await trial.may_publish([*(subjects[one] for one in foreign), inbox, anything])
    written = [one for one in foreign if publishes[subjects[one]]]
    if hears["_INBOX.>"] and publishes[inbox] and publishes[anything] and len(heard) == len(subjects):
        text = f"{who.name} may subscribe to all streams and publish anywhere: there are no permissions"
        return [bad(_CHECK, text, nats.remedy)]
    found = []
    if heard:
        text = f"{who.name} may subscribe to {listed(heard)}: it reads all that is published there"
        found.append(
            bad(_CHECK, text, f"only Penstock's user and clients that must read it from NATS need that ({PAGE})")
        )
    if written and who.role is Role.PUBLISHER and not who.subjects:
        text = f"{who.name} may publish on {listed(written)}"
        found.append(
            unknown(_CHECK, text, "if these are not all its own, name those that are: --as publisher:FILE:SUBJECT")
        )
    elif written:
        text = f"{who.name} may publish on {listed(written)}: it writes into their streams"
        found.append(bad(_CHECK, text, f"allow each publisher its own subjects ({PAGE})"))
    elif publishes[anything]:
        text = f"{who.name} may publish on arbitrary subjects, such as {anything}"
        found.append(warn(_CHECK, text, f"allow each publisher its own subjects ({PAGE})"))
    if publishes[inbox]:
        text = f"{who.name} may publish on _INBOX.>: it can forge acks"
        found.append(warn(_CHECK, text, f"only Penstock's user needs that ({PAGE})"))
    if hears["_INBOX.>"]:
        text = f"{who.name} may subscribe to _INBOX.>: it reads the acks of others"
        found.append(warn(_CHECK, text, f"give each an inbox of its own, such as _INBOX.shop.> ({PAGE})"))
    found += await _own_subjects(trial, who)
    if nats.api_prefixes:
        found += await _calling(trial, who, configs, nats)
    if not found and who.streams:
        found.append(ok(_CHECK, f"{who.name} may read {listed(who.streams)} only, and publishes into none"))
    if not found:
        keeps = f" and publishes on {listed(who.subjects)} only" if who.subjects else " and publishes into none"
        found.append(ok(_CHECK, f"{who.name} may subscribe to no stream{keeps}"))
    return found


async def _own_subjects(trial: Trial, who: Identity) -> list[Finding]:
    own = await trial.may_publish([sample(one) for one in who.subjects])
    if missing := [one for one in who.subjects if not own[sample(one)]]:
        text = f"{who.name} may not publish on {listed(missing)}, which it should"
        return [fail(_CHECK, text, f"allow it: `publish` in nats-server.conf ({PAGE})")]
    return []


def sample(pattern: str) -> str:
    """Return a plain subject that matches the pattern."""
    return ".".join(_SAMPLE if token in ("*", ">") else token for token in pattern.split("."))
