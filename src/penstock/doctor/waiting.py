"""Waits until a cluster is ready, or in sync."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Collection, Sequence

from penstock.base.errors import ErrorCode
from penstock.base.units import counted
from penstock.client.errors import StreamNotFound, Unauthenticated
from penstock.doctor.cluster_state import ClusterState, cluster_state
from penstock.doctor.findings import listed
from penstock.doctor.verdict import IN_SYNC, READY, SILENT_SINCE, judge

_AGAIN_S = 0.5
_ASK_S = 5.0  # for one round; brokers that do not answer are not waited for longer


def what_is_missing(state: ClusterState, *, in_sync: bool = False, streams: Collection[str] = ()) -> list[str]:
    """Return what the cluster lacks to be ready, or in sync; empty: nothing. `streams`: only these count; none: all."""
    kinds = IN_SYNC if in_sync else READY
    verdict = judge(state, streams or None)
    missing = [one.text for one in verdict.reasons if one.kind in kinds]
    unknown = sorted(set(streams) - {one.name for one in state.streams})
    if unknown and state.best is not None:
        missing.append(f"there is no {counted(len(unknown), 'stream').partition(' ')[2]} {listed(unknown)}")
    return missing


def check_names(state: ClusterState, streams: Collection[str]) -> None:
    """Raise StreamNotFound if the metadata leader does not know one of the streams: waiting would not help."""
    best = state.best
    if best is None or best.metadata_leader != best.broker_id or state.streams_failure:
        return  # a broker that is behind may not know a new stream yet
    known = [one.name for one in state.streams]
    for name in streams:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            text = f"there is no stream {name!r}{f'; did you mean {close[0]}?' if close else ''}"
            raise StreamNotFound(ErrorCode.STREAM_NOT_FOUND, text, stream=name)


async def wait_until(
    server: str | Sequence[str] | None = None,
    *,
    in_sync: bool = False,
    streams: Collection[str] = (),
    timeout: float = 60.0,
    missing: Callable[[list[str]], None] = lambda texts: None,
) -> list[str]:
    """Wait until all brokers are there and all partitions store messages, with `in_sync` in all their replicas.

    Returns what is still missing after `timeout` seconds; empty: nothing. `missing` is called with it whenever it
    changes. Unauthenticated: logins are refused to the end. NotAuthorized: as `cluster_state`. StreamNotFound: the
    metadata leader does not know one of the streams.
    """
    clock = asyncio.get_running_loop()
    deadline_s = clock.time() + timeout
    told: list[str] = []
    while True:
        left_s = deadline_s - clock.time()
        try:
            state = await cluster_state(server, timeout=max(min(_ASK_S, left_s), 1.0))
            check_names(state, streams)
            found = what_is_missing(state, in_sync=in_sync, streams=streams)
        except Unauthenticated as error:  # a new cluster refuses every login until it has its first user
            if clock.time() + _AGAIN_S >= deadline_s:
                raise
            found = [error.message]
        if (steady := [one.partition(SILENT_SINCE)[0] for one in found]) != told:
            told = steady
            missing(found)
        if not found or clock.time() + _AGAIN_S >= deadline_s:
            return found
        await asyncio.sleep(_AGAIN_S)
