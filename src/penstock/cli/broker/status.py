"""`penstock status`: a verdict on the cluster, and the state of its brokers, streams and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.base.errors import PenstockError
from penstock.base.units import format_bytes, format_duration_ms
from penstock.cli.stream import replicas, report
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, clearly, error_text, is_debugging, say_error, say_note
from penstock.cli.terminal.failure import report as report_error
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Json, Server, Timeout, examples, seconds_of, server_of
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from penstock.doctor.cluster_state import ClusterState, Rates
    from penstock.doctor.verdict import Verdict
    from penstock.messages import ApiDecisionInfo, StatusResponse, StreamInfo

DEGRADED = 3
"""The exit code where something is missing; if the cluster is down, it is FAILED."""
UNKNOWN = 2
"""The exit code where the cluster could not be asked, so that nothing is known of it."""

EXAMPLES = examples(
    "penstock status",
    "# again every 2 s, with rates",
    "penstock status --watch",
    "penstock status --server broker-1.example:7422,broker-2.example:7422",
    "# in a script: the exit code is 0 (healthy), 3 (degraded), 1 (down) or 2 (unknown)",
    "penstock status --json | jq -r .verdict.health",
)
_ANNOUNCED_SHOWN = 8
_GROUPS_SHOWN = 3
_COUNTERS = {  # texts for counters whose names are not clear enough
    "dropped": "messages that matched and were not stored",
    "duplicates": "duplicate messages that were not stored again",
    "delayed": "requests over a user's rate limit that were served, delaying the next",
    "throttled": "requests over a user's rate limit that were refused",
}
_STYLES = {"healthy": "bold green", "degraded": "bold yellow", "down": "bold red"}


@clearly
def status(
    ctx: typer.Context,
    as_json: Json = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again, with rates, until Ctrl-C.")
    ] = False,
    interval: Annotated[str, typer.Option("--interval", metavar="DURATION", help="With --watch: how often.")] = "2s",
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show if the cluster is healthy, degraded or down, and why; then its brokers, streams, replicas, gaps and groups.

    Every broker is asked, so it does not matter which one --server names. Exit code 0: healthy; 3: degraded, something
    is missing; 1: down, no message is stored, or no broker answers; 2: unknown, the cluster could not be asked, as with
    a wrong password. A user needs the right `monitor` or `admin`.

    If there are many streams and partitions, those with problems and some others are shown; --json shows all.
    """
    import asyncio

    from penstock.doctor.cluster_state import cluster_state

    need_stdout()
    seconds, pause_s, at = seconds_of(timeout), _interval(interval), server_of(ctx, server)

    async def ask() -> ClusterState:
        return await cluster_state(at, timeout=seconds, with_lags=True)

    try:
        if watch:
            asyncio.run(_watch(ask, pause_s, as_json=as_json))
            return
        state = asyncio.run(ask())
    except BrokenPipeError:
        raise
    except (PenstockError, OSError, ValueError) as error:  # as with a wrong password: it may well be healthy
        if is_debugging():
            raise
        if as_json:
            output.print_json(_json_unknown(error))
        report_error(error)
        raise typer.Exit(UNKNOWN) from None
    verdict = _judged(state)
    if as_json:
        output.print_json(_json(state, verdict))
    else:
        _print(output.console(), state, verdict)
        if state.best is None:
            _say_nobody(verdict)
    if verdict.health != "healthy":
        raise typer.Exit(DEGRADED if verdict.health == "degraded" else FAILED)


def _interval(text: str) -> float:
    try:
        return seconds_of(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint="'--interval'") from None


def _judged(state: ClusterState) -> Verdict:
    from penstock.doctor.verdict import judge

    return judge(state)


def _say_nobody(verdict: Verdict) -> None:
    for reason in verdict.reasons:
        say_error(reason.text)
        say_note(f"  {reason.advice}")


def _json(state: ClusterState, verdict: Verdict, rates: Mapping[int, Rates] | None = None) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "broker": state.home,
        "brokers": state.answers,
        "streams": state.streams,
        "groups": state.lags,
        **({} if rates is None else {"rates": {str(broker_id): one for broker_id, one in rates.items()}}),
    }


def _json_unknown(error: Exception) -> dict[str, Any]:
    from penstock.doctor.cluster_state import ClusterState
    from penstock.doctor.verdict import unjudged

    return _json(ClusterState(), unjudged(error_text(error)))


async def _watch(ask: Any, pause_s: float, *, as_json: bool) -> None:
    """Show the state every `pause_s` seconds: on a terminal in place, else one after the other."""
    import asyncio

    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = output.console()
    is_live = console.is_terminal and not as_json
    before: ClusterState | None = None
    with Live(console=console, screen=True, auto_refresh=False) if is_live else _Nothing() as live:
        while True:
            began_s = asyncio.get_running_loop().time()
            state = await ask()
            verdict = _judged(state)
            rates = {} if before is None else state.rates_since(before)
            if as_json:
                output.print_json(_json(state, verdict, rates))
            elif isinstance(live, Live):
                live.update(Group(*_watched(state, verdict, rates, width=console.width)), refresh=True)
            else:
                console.print(*_watched(state, verdict, rates, width=console.width), Text(), sep="\n")
            before = state
            await asyncio.sleep(max(0.0, pause_s - (asyncio.get_running_loop().time() - began_s)))


class _Nothing:
    """A context without an effect."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _watched(state: ClusterState, verdict: Verdict, rates: Mapping[int, Rates], *, width: int) -> list[RenderableType]:
    """Return what fits on a screen: the verdict, the brokers with rates, the streams, the groups."""
    from rich.text import Text

    shown: list[RenderableType] = [
        *_verdict_lines(verdict),
        Text(f"at {output.time_text(_now_us())}", style="dim"),
        Text(),
    ]
    if state.best is not None:
        shown.append(replicas.broker_table(_with_itself(state.best), state, rates))
    if state.streams:
        some = replicas.some_of(state.streams, _is_well, replicas.SHOWN_MAX)
        shown += [Text(), report.stream_table(some, width=width)]
    if groups := _group_texts(state):
        shown += [Text(), report.pairs(groups)]
    return shown


def _now_us() -> int:
    import time

    return time.time_ns() // 1_000


def _with_itself(status: StatusResponse) -> StatusResponse:
    """Return the status; of a broker that has not joined a cluster yet, with itself as the only broker."""
    from penstock.messages import BrokerInfo

    if status.brokers:
        return status
    itself = BrokerInfo(
        broker_id=status.broker_id, address=status.address, broker_version=status.broker_version, is_live=False
    )
    return msgspec.structs.replace(status, brokers=(itself,))


def _verdict_lines(verdict: Verdict) -> list[RenderableType]:
    """Return the line of the verdict, then those for what it leaves out, and what to do."""
    style = _STYLES.get(verdict.health, "")
    lines: list[RenderableType] = [output.cell(verdict, style)]
    lines += [output.cell(f"  also: {one.text}", "yellow") for one in verdict.left_out]
    advices = dict.fromkeys(one.advice for one in verdict.reasons if one.advice)
    lines += [output.cell(f"  → {advice}", "dim") for advice in list(advices)[: verdict.SAID_MAX]]
    return lines


def _print(console: Console, state: ClusterState, verdict: Verdict) -> None:
    from penstock.doctor.gaps import causes

    home, infos = state.home, state.streams
    if state.best is None:
        console.print(output.cell(verdict, _STYLES.get(verdict.health, "")))
        return
    for line in _verdict_lines(verdict):
        console.print(line)
    console.print()
    if home is not None:
        if warning := without_leader(home):
            console.print(output.cell(warning, "bold red"))
            console.print()
        console.print(report.pairs({**broker_pairs(home), **_group_texts(state)}))
    if len(state.best.brokers) > 1:
        console.print()
        console.print(replicas.broker_table(state.best, state))
    if infos:
        console.print()
        shown = replicas.some_of(infos, _is_well, replicas.SHOWN_MAX)
        console.print(report.stream_table(shown, width=console.width))
        if more := replicas.more_text(infos, _is_well, replicas.SHOWN_MAX, "stream"):
            console.print(output.cell(f"{more}; `penstock stream list` and --json have them"))
    if infos and len(state.best.brokers) > 1:
        console.print()
        unreachable = frozenset(one.broker_id for one in state.best.brokers if one.is_reachable is False)
        gone = unreachable if state.best.metadata_leader is None else frozenset()
        console.print(replicas.replica_table(infos, gone))
        if more := replicas.left_out(infos, gone):
            console.print(output.cell(more))
        if silence := replicas.silent_leaders(infos):
            console.print(output.cell(silence, "yellow"))
    if suspended := suspended_text(infos):
        console.print()
        console.print(output.cell(suspended, "yellow"))
    report.print_causes(console, causes(infos))
    report.print_troubles(console, [_without_gaps(info) for info in infos])


def suspended_text(infos: Sequence[StreamInfo]) -> str:
    """Return a line about the streams in which deletion is suspended; empty if there are none."""
    from penstock.doctor.findings import listed

    names = [info.name for info in infos if info.config.is_deletion_suspended]
    return f"Deletion is suspended in {listed(names)}: `penstock doctor` says how to resume it" if names else ""


def _group_texts(state: ClusterState) -> dict[str, str]:
    """Return a line about the lag of the consumer groups, if there are any."""
    if state.lags_failure:
        return {"consumer groups": f"not known: {state.lags_failure}"}
    if not state.lags:
        return {}
    total = sum(one.lag or 0 for one in state.lags)
    most = ", ".join(
        f"{one.group} on {one.stream} {output.count_text(one.lag)}" for one in state.lags[:_GROUPS_SHOWN] if one.lag
    )
    unknown = sum(one.lag is None for one in state.lags)
    text = f"{output.count_text(len(state.lags))}, lag {output.count_text(total)}"
    text += f"; of {output.count_text(unknown)} it is not known" if unknown else ""
    return {"consumer groups": f"{text}; most: {most}" if most else text}


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


def _level_text(state: StatusResponse) -> str:
    """Return the cluster's feature level; with a hint if all brokers can more."""
    from penstock.metadata.feature_levels import raisable_to

    higher = raisable_to(state.feature_level, (one.broker_version for one in state.brokers))
    hint = f"; all brokers can {higher}: penstock cluster upgrade" if higher else ""
    return f"{state.feature_level}{hint}"


def api_text(decision: ApiDecisionInfo) -> str:
    """Return who serves a prefix of JetStream's API, and why not this cluster."""
    subjects = f"{decision.prefix}>"
    if decision.state == "taken":
        return f"{subjects} served"
    if decision.state == "withdrawn":
        return f"{subjects} left to another service, {decision.why}; penstock cluster take-api takes it back"
    return f"{subjects} not served yet: {decision.why or 'all brokers are to find out first if another service has it'}"


_SYNCED_BY = {"kernel": "the kernel (Linux AIO)"}


def broker_pairs(state: StatusResponse) -> dict[str, str]:
    """Return a broker's state as names and texts."""
    nats = state.nats
    of_its_own = " (embedded)" if nats.embedded else ""
    version = f", nats-server {nats.server_version}" if nats.server_version else ""
    shown = {
        "broker": f"{state.broker_id} at {state.address}, version {state.broker_version}",
        "cluster": state.cluster_id or "not known yet",
        **({"feature level": _level_text(state)} if state.feature_level else {}),
        **({"JetStream's API": "; ".join(map(api_text, state.apis))} if state.apis else {}),
        "data": state.data_dir,
        **({} if state.disk_free_bytes is None and state.disk_answers else {"disk": replicas.disk_text(state)}),
        **({"syncs": f"by {_SYNCED_BY.get(state.synced_by, state.synced_by)}"} if state.synced_by else {}),
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
    if nats.api_unknown:
        shown["API unknown"] = "; ".join(nats.api_unknown)
    if nats.api_state not in ("", "connected"):
        shown["API connection"] = f"none, so requests go to other brokers: {nats.api_error or 'connecting'}"
    if nats.leaf_state:
        subjects = output.counted(nats.leaf_subjects, "subject")
        up = f"over {nats.leaf_url}; {subjects} with interest"
        shown["deliveries"] = up if nats.leaf_state == "connected" else f"none: {nats.leaf_error or 'connecting'}"
    if nats.undelivered:
        shown["not delivered"] = f"{output.count_text(nats.undelivered)} batches: the leaf connection did not take them"
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
