"""`penstock status`: the state of a broker and its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import typer

from penstock.base.units import format_bytes, format_duration_ms
from penstock.cli.stream import replicas, report
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Json, Server, Timeout, connected, examples
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.messages import StatusResponse, StreamInfo

EXAMPLES = examples(
    "penstock status",
    "penstock status --server broker-1.example:7422",
    "penstock status --json | jq .broker.nats.state",
)
_ANNOUNCED_SHOWN = 8
_COUNTERS = {  # texts for counters whose names are not clear enough
    "dropped": "messages that matched and were not stored",
    "duplicates": "duplicate messages that were not stored again",
    "delayed": "requests over a user's rate limit that were served, delaying the next",
    "throttled": "requests over a user's rate limit that were refused",
}


@clearly
def status(
    ctx: typer.Context,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show the state of a broker and its cluster: NATS, brokers, streams, replicas, gaps, corruption.

    If there are many streams and partitions, those with problems and some others are shown; --json shows all.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        state = client.status(timeout=seconds)
        # A broker that has not joined its cluster yet has no streams, and the request would wait.
        infos = client.streams(timeout=seconds) if state.streams else []
    if as_json:
        output.print_json({"broker": state, "streams": infos})
        return
    from penstock.doctor.gaps import causes

    console = output.console()
    if warning := without_leader(state):
        console.print(output.cell(warning, "bold red"))
        console.print()
    console.print(report.pairs(broker_pairs(state)))
    if len(state.brokers) > 1:
        console.print()
        console.print(replicas.broker_table(state))
    if infos:
        console.print()
        shown = replicas.some_of(infos, _is_well, replicas.SHOWN_MAX)
        console.print(report.stream_table(shown, width=console.width))
        if more := replicas.more_text(infos, _is_well, replicas.SHOWN_MAX, "stream"):
            console.print(output.cell(f"{more}; `penstock stream list` and --json have them"))
    if infos and len(state.brokers) > 1:
        console.print()
        unreachable = frozenset(one.broker_id for one in state.brokers if one.is_reachable is False)
        gone = unreachable if warning else frozenset()
        console.print(replicas.replica_table(infos, gone))
        if more := replicas.left_out(infos, gone):
            console.print(output.cell(more))
        if silence := replicas.silent_leaders(infos):
            console.print(output.cell(silence, "yellow"))
    report.print_causes(console, causes(infos))
    report.print_troubles(console, [_without_gaps(info) for info in infos])


def _is_well(info: StreamInfo) -> bool:
    return all(map(replicas.is_well, info.partitions))


def _without_gaps(info: StreamInfo) -> StreamInfo:
    """Return the stream without its gaps, which are printed once for all streams."""
    parts = tuple(msgspec.structs.replace(part, gaps=()) for part in info.partitions)
    return msgspec.structs.replace(info, partitions=parts)


def without_leader(state: StatusResponse) -> str:
    """Return a warning with the age of the data if there is no metadata leader; empty if there is, or no cluster."""
    if state.metadata_leader is not None or state.voters <= 1:
        return ""
    heard = "before the broker started"
    if state.metadata_heard_ms is not None:
        heard = f"{format_duration_ms(max(1, state.metadata_heard_ms // 1_000) * 1_000)} ago"
    reachable = f"{state.voters_reachable} of {state.voters} voters reachable"
    return f"no metadata leader: the following is the state last received, {heard}; {reachable}"


def broker_pairs(state: StatusResponse) -> dict[str, str]:
    """Return a broker's state as names and texts."""
    nats = state.nats
    of_its_own = " (embedded)" if nats.embedded else ""
    version = f", nats-server {nats.server_version}" if nats.server_version else ""
    shown = {
        "broker": f"{state.broker_id} at {state.address}, version {state.broker_version}",
        "cluster": state.cluster_id or "not known yet",
        "data": state.data_dir,
        "up": f"{format_duration_ms(state.uptime_ms)}, since {output.time_text(state.started_us)}",
        "NATS": f"{nats.state}, {nats.url}{of_its_own}{version}",
    }
    if nats.announced:
        more = f" and {len(nats.announced) - _ANNOUNCED_SHOWN} more" if len(nats.announced) > _ANNOUNCED_SHOWN else ""
        shown["NATS announces"] = ", ".join(nats.announced[:_ANNOUNCED_SHOWN]) + more
    if state.waits_for:
        shown["not ready"] = state.waits_for
    if nats.reading_paused:
        shown["reading"] = "paused: the limit of bytes in flight is reached"
    if nats.reconnects or nats.last_error:
        shown["NATS trouble"] = f"{nats.reconnects} reconnects; last: {nats.last_error or '-'}"
    if nats.answers_dropped:
        count = output.count_text(nats.answers_dropped)
        shown["answers dropped"] = f"{count} of the acks and refusals made: nats-server did not take them in time"
    if nats.messages_skipped:
        count = output.count_text(nats.messages_skipped)
        shown["messages skipped"] = f"{count} unknown messages from nats-server; the log shows how they begin"
    if nats.unanswerable:
        count = output.count_text(nats.unanswerable)
        shown["without an ack"] = f"{count} messages whose reply subject is too long or has a carriage return in it"
    partitions = sum(state.partitions_by_state.values())
    states = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in state.partitions_by_state.items() if count
    )
    shown |= {
        "streams": output.count_text(state.streams),
        **({"partitions": f"{output.count_text(partitions)} ({states})"} if states else {}),
        "clients": ", ".join(
            (
                output.counted(state.connections, "connection"),
                f"{output.counted(state.requests_in_flight, 'request')} in flight",
            )
        ),
        "in flight": f"{format_bytes(state.in_flight_bytes)} of {format_bytes(state.in_flight_bytes_max)}",
    }
    if state.tls_expires_us is not None:
        shown["TLS"] = f"the broker's certificate expires on {output.time_text(state.tls_expires_us)}"
    if state.counters:
        counters = (
            f"{_COUNTERS.get(name) or name.replace('_', ' ')} {output.count_text(count)}"
            for name, count in state.counters.items()
        )
        shown["since start"] = ", ".join(counters)
    return shown
