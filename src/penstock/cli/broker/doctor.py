"""`penstock doctor`: finds problems of a running cluster and prints remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock import __version__
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, clearly
from penstock.cli.terminal.nats_options import NatsTlsCa, NatsTlsCert, NatsTlsKey
from penstock.cli.terminal.options import (
    CONNECTION_PANEL,
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    Timeout,
    connected,
    examples,
)

if TYPE_CHECKING:
    from penstock.broker.security.nats_credentials import TlsFiles
    from penstock.client.blocking.client import Client
    from penstock.client.consume.stream_consumers import ConsumerInfo
    from penstock.doctor.findings import Finding
    from penstock.doctor.identities import Identity
    from penstock.doctor.permissions import Nats
    from penstock.messages import ListUsersResponse, StatusResponse, StreamInfo

T = TypeVar("T")

EXAMPLES = examples(
    "penstock doctor",
    "# also test permissions in NATS",
    "penstock doctor --as penstock:penstock.creds --as 'publisher:shop.creds:orders.>'",
    "# on the machine of a broker: its disk and its limits, too",
    "penstock doctor --data-dir /var/lib/penstock",
    "# in a script: exit code 1 after a failure or a warning",
    "penstock doctor --strict --json | jq '.findings[] | select(.result != \"ok\")'",
)
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}

_As = Annotated[
    list[str] | None,
    typer.Option(
        "--as",
        metavar="ROLE:FILE[:SUBJECT,…]",
        help="Test what NATS allows a user.  FILE: the user's login: NATS credentials, an nkey seed, or one line "
        "user:password.  ROLE: penstock (the brokers' user), publisher (SUBJECT,…: its own subjects), "
        "reader (a client of JetStream's API; SUBJECT,…: its streams), other, or operator (a user that may list "
        "JetStream's streams).  May be repeated.",
    ),
]
_Nats = Annotated[
    str | None,
    typer.Option(
        "--nats",
        metavar="URL",
        help="The nats-server.  Default: the one that the broker reports.",
        rich_help_panel=CONNECTION_PANEL,
    ),
]


@clearly
def doctor(
    ctx: typer.Context,
    identities: _As = None,
    data_dir: Annotated[
        list[Path] | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Data directory of a broker on this machine: check its disk and its limits, too.  May be repeated.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 also after a warning.")] = False,
    as_json: Json = False,
    nats: _Nats = None,
    nats_tls_ca: NatsTlsCa = None,
    nats_tls_cert: NatsTlsCert = None,
    nats_tls_key: NatsTlsKey = None,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Check a running cluster: brokers, replicas, clocks, configs, NATS permissions. Print problems and remedies.

    The command changes nothing, and publishes into no stream.

    For the embedded nats-server of a broker on this machine an administrator needs no --as penstock: the broker gives
    the administrator the login.

    The exit code is 1 if a check failed.
    """
    from penstock.base.errors import ConfigError
    from penstock.broker.security.nats_credentials import TlsFiles
    from penstock.doctor.findings import Result, worst
    from penstock.doctor.identities import parse_identities, with_login_of_broker

    for folder in data_dir or ():
        if not folder.is_dir():
            raise typer.BadParameter(f"there is no directory {folder}", param_hint="--data-dir")
    who = parse_identities(identities or [])
    tls = TlsFiles(nats_tls_ca, nats_tls_cert, nats_tls_key)
    if mistakes := tls.mistakes():
        raise ConfigError(mistakes)
    with connected(ctx, server, timeout) as (client, seconds):
        home = client.status(timeout=seconds)
        findings: list[Finding] = []
        infos = _reached(findings, "streams", lambda: client.streams(timeout=seconds)) if home.streams else []
        users = _reached(findings, "users", lambda: client.users.all(timeout=seconds))
        findings = [*_of_cluster(client, home, infos, users, seconds, data_dir or []), *findings]
        if home.apis_served and infos is not None:
            findings += _of_consumers(client, infos, seconds)
        has_users = users is not None and users.is_guarded
        at = _nats_at(client, home, nats, tls, seconds, has_users=has_users)
        who = with_login_of_broker(who, client.nats_urls if nats is None else ())
        findings += _of_nats(at, who, infos or [])
    if as_json:
        output.print_json({"result": worst(findings), "findings": findings})
    else:
        _show(findings)
    if worst(findings) is Result.FAIL or (strict and worst(findings) is Result.WARN):
        raise typer.Exit(FAILED)


def _reached(findings: list[Finding], check: str, ask: Callable[[], T]) -> T | None:
    """Return the answer; None, and a finding, if no broker gives it, as without a metadata leader."""
    from penstock.base.errors import OperationalError, RemoteError
    from penstock.doctor.findings import unknown

    try:
        return ask()
    except (RemoteError, OperationalError) as error:
        text = error.message if isinstance(error, RemoteError) else str(error)
        findings.append(unknown(check, f"they could not be read: {text}", "see `brokers` and `metadata`"))
        return None


def _of_cluster(
    client: Client,
    home: StatusResponse,
    infos: Sequence[StreamInfo] | None,
    users: ListUsersResponse | None,
    seconds: float,
    data_dirs: Sequence[Path],
) -> Iterator[Finding]:
    import time

    from penstock.doctor.asking import ask_all
    from penstock.doctor.brokers import judge_api_settings, judge_brokers
    from penstock.doctor.expiries import judge_certificates, judge_credentials
    from penstock.doctor.machine import judge_machine
    from penstock.doctor.streams import judge_streams

    asked = ask_all(client, home.brokers, seconds)
    statuses = {one.status.broker_id: one.status for one in asked if one.status is not None}
    now_us = time.time_ns() // 1_000
    yield from judge_brokers(home, asked, __version__)
    yield from judge_api_settings(asked, users)
    yield from judge_certificates(asked, now_us)
    if users is not None:
        yield from judge_credentials(users, now_us)
    if infos is not None:
        is_led = home.metadata_leader is not None or home.voters <= 1
        yield from judge_streams(infos, home.brokers, now_us, is_led=is_led)
    for data_dir in data_dirs:
        yield from judge_machine(data_dir, statuses)


def _of_consumers(client: Client, infos: Sequence[StreamInfo], seconds: float) -> Iterator[Finding]:
    """Judge the consumers of JetStream's API, of the first streams if there are very many."""
    from datetime import UTC, datetime

    from penstock.doctor.consumers import CHECK, STREAMS_ASKED_MAX, judge_consumers, judge_named
    from penstock.doctor.findings import unknown

    found: list[ConsumerInfo] = []
    failed: list[Finding] = []
    streams = [info for info in infos if not info.config.is_internal]
    for info in streams[:STREAMS_ASKED_MAX]:
        some = _reached(failed, CHECK, partial(client.consumers.all, info, timeout=seconds))
        found += some or ()
        if failed:
            break  # most likely the next ones fail, too, each at its time-out
    retentions = {info.config.name: info.config.retention_policy for info in streams if info.config.is_consumed}
    yield from judge_consumers(found, datetime.now(UTC), retentions)
    named = [info for info in streams if info.config.named_consumers]
    silent = (
        {} if failed else _reached(failed, CHECK, lambda: {one.name: _silent(client, one, seconds) for one in named})
    )
    yield from judge_named(silent or {})
    yield from failed
    if len(streams) > STREAMS_ASKED_MAX:
        text = f"only {STREAMS_ASKED_MAX} of {len(streams)} streams were looked at"
        yield unknown(CHECK, text, "look at the others with `penstock consumer ls STREAM`")


def _silent(client: Client, info: StreamInfo, seconds: float) -> list[str]:
    """Return the groups and archives that a stream names as its consumers, and that have no offset yet."""
    found = []
    for name in info.config.named_consumers:
        kind, _, bare = name.partition(":")
        if kind == "group":
            has_any = any(one.offset is not None for one in client.groups.offsets(bare, info, timeout=seconds))
        else:
            has_any = all(bare in one.archives for one in info.partitions)
        found += [] if has_any else [name]
    return found


def _nats_at(
    client: Client, home: StatusResponse, given: str | None, tls: TlsFiles, seconds: float, *, has_users: bool
) -> Nats | None:
    from penstock.base.addresses import Address
    from penstock.broker.security.nats_credentials import parse_nats_urls
    from penstock.doctor.permissions import Nats

    text = given or ",".join(client.nats_urls)
    if not text:
        return None
    servers = tuple(one.without_login for one in parse_nats_urls(text))  # the checks also connect without a login
    is_private = home.nats.embedded or all(Address(one.host, one.port).is_loopback for one in servers)
    return Nats(
        *(servers, tls, int(seconds * 1_000), is_private, home.nats.embedded, has_users, home.cluster_id),
        *(home.nats.api_prefixes, home.nats.api_manages),
    )


def _of_nats(at: Nats | None, who: Sequence[Identity], infos: Sequence[StreamInfo]) -> list[Finding]:
    import asyncio
    import logging

    from penstock.doctor.findings import unknown
    from penstock.doctor.jetstream import judge_jetstream
    from penstock.doctor.permissions import judge_permissions

    if at is None:
        return [unknown("NATS permissions", "the broker does not report the address of NATS", "give it with --nats")]

    # A rejected login is a finding here, so the link must not log it as a failure.
    logging.getLogger("penstock.nats").setLevel(logging.CRITICAL)

    async def judge() -> list[Finding]:
        configs = [info.config for info in infos]
        found = [one async for one in judge_permissions(at, who, configs)]
        return [*found, *await judge_jetstream(at, who, infos)]

    return asyncio.run(judge())


def _show(findings: Sequence[Finding]) -> None:
    console = output.console()
    made = output.table("check", "result", "found", "what to do")
    for one in findings:
        result = output.cell(one.result, _STYLES[one.result])
        made.add_row(output.cell(one.check, "bold"), result, output.cell(one.found), output.cell(one.advice))
    console.print(made)
    counts = Counter(str(one.result) for one in findings)
    console.print()
    console.print(output.cell(", ".join(f"{counts[result]} {result}" for result in _STYLES if counts[result])))
