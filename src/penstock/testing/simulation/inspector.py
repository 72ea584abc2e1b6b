"""Read-only access to a node's private state (partitions, metadata), for all other modules of the simulator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Set
from hashlib import sha256
from typing import NamedTuple

from penstock.access import User
from penstock.base.config import Retain, StreamConfig
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import BrokerId, PartitionId, PartitionKey, StreamId
from penstock.batch import codec
from penstock.batch.header import BatchHeader
from penstock.commitlog import Deciding, LogCutError, LogState, Slice
from penstock.commitlog.files import files
from penstock.hot.crc import crc32c
from penstock.live.live_rows import LiveRows
from penstock.live.marks import HideReason, decode
from penstock.live.row_set import NONE, RowSet
from penstock.messages import AddCompanionRequest, AppendResponse, Response
from penstock.metadata import elections
from penstock.metadata.companions import is_companion, marks_key, target_key
from penstock.metadata.feature_levels import LEADER_LEASE
from penstock.metadata.image import ClusterImage, StreamState
from penstock.metadata.persistence.snapshot import encode_image
from penstock.node.node import Node
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companions import ReadCompanionRows, may_lack_marks
from penstock.testing.simulation.checks.compacted import CompactedRow
from penstock.testing.simulation.rows import ReadRows

_READ_BYTES = 1 << 20  # bytes of batches read at once
_KEY, _VALUE, _HEADERS = 1, 2, 3  # positions among the string columns
Seen = dict[PartitionKey, tuple[object, ...]]
"""State that `changed` has found before: everything in a `PartitionLook` but the corruption."""
Batch = tuple[BatchHeader, list[tuple[int, int]]]
"""The header and the rows of a batch: of each row the offset and a checksum of its content."""

# ruff: noqa: SLF001 (see the module)


class PartitionLook(NamedTuple):
    """One partition on one broker."""

    stream_id: int
    subject: str  # of its stream
    partition: int
    log_start: int  # as readers see it
    committed_end: int
    log_end: int
    flushed_end: int
    leader_epoch: int
    is_leader: bool
    leads: bool  # leads, and has appended in this epoch
    follows: bool
    is_in_sync: bool  # as the broker knows
    isr: tuple[int, ...]
    min_isr: int
    is_damaged: bool
    is_failing: bool  # accepts no writes until a restart
    version: int  # of the ISR
    is_deletion_suspended: bool = False
    counted: int | None = None  # messages shown, as the leader counts them for a limit; None: it has none, or not yet
    shown: int = 0  # the same, counted anew
    messages_max: int | None = None  # to be shown; None: no limit that deletes


class StandingLook(NamedTuple):
    """The registration and Raft state of one broker."""

    raft_term: int  # term in which the broker knows that it leads the metadata
    elected_term: int  # term in which Raft leads, known to the broker or not; 0: it does not lead
    applied: int
    is_metadata_leader: bool
    incarnation: int  # 0: not registered
    is_failing: bool  # excluded from the metadata quorum until a restart


def partitions(node: Node) -> Iterator[PartitionLook]:
    """Return all open partitions of the broker."""
    for key, partition in node._partitions.items():
        yield _look(node, key, partition)


def partition(node: Node, stream_id: int, number: int) -> PartitionLook | None:
    """Return one open partition, or None."""
    key = PartitionKey(StreamId(stream_id), PartitionId(number))
    there = node._partitions.get(key)
    return None if there is None else _look(node, key, there)


def has_leases(node: Node) -> bool:
    """Return True if the broker confirms look-ups by leases: its cluster's level allows it, as far as it knows."""
    return node.image.has_feature(LEADER_LEASE)


def add_companion(node: Node, look: PartitionLook, done: Callable[[Response | RemoteError], None]) -> None:
    """Ask the metadata leader for companion logs of the partition's stream."""
    node._cluster.link.ask(AddCompanionRequest(stream_id=StreamId(look.stream_id)), done)


def marks(node: Node, look: PartitionLook, offsets: list[int], user: str) -> list[tuple[bytes, bytes]]:
    """Return the marks that delete messages, half of them securely. Raise RemoteError if the broker does not lead the
    partition now.
    """
    hidden, is_secure = node._replicas.hidden_rows, sum(offsets) % 2 == 0
    named = RowSet.of(offsets)
    rows = hidden.marks(_led(node, look), (named,), HideReason.DELETE, user, node._context.now, is_secure=is_secure)
    return [(key, value or b"") for key, value in rows]


def append_marks(
    node: Node,
    look: PartitionLook,
    rows: list[tuple[bytes, bytes]],
    done: Callable[[AppendResponse | RemoteError], None],
) -> None:
    """Append rows to the companion log of a partition. Raise RemoteError if the broker does not take them now."""
    node._router.storing.append_to_companion(_led(node, look), list(rows), done)


def consume(node: Node, look: PartitionLook, offsets: list[int], done: Callable[[RemoteError | None], None]) -> None:
    """Hide messages as acks do; half of the calls are waited for. Raise RemoteError if it does not do so now."""
    is_awaited = sum(offsets) % 2 == 0
    node.consume(_led(node, look).key, RowSet.of(offsets), done, is_awaited=is_awaited)


def shown_offsets(node: Node, look: PartitionLook) -> list[int]:
    """Return the offsets that readers of this broker are shown now, gaps of the log included."""
    partition = node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))]
    hidden = partition.log.hidden or NONE
    return [one for one in range(partition.log_start, partition.visible_end) if one not in hidden]


def _led(node: Node, look: PartitionLook) -> Partition:
    partition = node._partitions.get(PartitionKey(StreamId(look.stream_id), PartitionId(look.partition)))
    if partition is None or partition.leadership is None or partition.is_mute:
        raise RemoteError(ErrorCode.NOT_LEADER, "it does not lead the partition now")
    return partition


class Folded(NamedTuple):
    """Fold of the marks of a partition on one broker."""

    hidden: RowSet
    secure: RowSet
    decided: tuple[int, int]  # limit by subject, and up to where it was decided


def folded(node: Node, stream_id: int, number: int) -> tuple[int, Folded] | None:
    """Return up to which offset of its companion log a partition is folded, and to what; None: no marks, or not all."""
    key = PartitionKey(StreamId(stream_id), PartitionId(number))
    passed = node._replicas.companions._passed.get(marks_key(key))
    fold = node._replicas.hidden_rows._folds.get(key)
    if passed is None or fold is None or not fold.live.is_whole:
        return None
    live = fold.live
    return passed.end, Folded(live.hidden, live.secure, (live.limit, live.decided_end))


def has_all_marks(node: Node, look: PartitionLook) -> bool:
    """True if the committed rows that a companion log still has say what is hidden. May raise errors of reading."""
    partition = node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))]
    live, start = LiveRows(look.log_start), look.log_start
    while start < look.committed_end:
        read = ReadCompanionRows(partition.log.view(), start, look.committed_end)
        read.run()
        for row in read.rows:
            live.take(decode((row.key or b"").decode(), row.value or b""))
        start = read.end
    return live.is_whole


class LimitLook(NamedTuple):
    """The limit by subject of one replica, up to where readers see its rows, and which of them are hidden.

    `limit`: None if there is none, or if it is not applied yet.
    """

    limit: int | None
    log_start: int
    visible_end: int
    undecidable_end: int  # end of the rows that are being decided on and are not committed; 0: there are none
    hidden: RowSet


def limit(node: Node, stream_id: int, number: int) -> LimitLook | None:
    """Return the limit by subject of a replica; None if it is not here."""
    partition = node._partitions.get(PartitionKey(StreamId(stream_id), PartitionId(number)))
    if partition is None:
        return None
    limit = partition.stream.config.subject_limit if partition.needs_decisions else None
    if limit is not None and not 0 < partition.decided_limit <= limit:
        limit = None  # it was changed, and all is decided anew
    deciding = node._decisions._deciding.get(partition)
    end = 0 if deciding is None or deciding.query is None else deciding.query.decided_end
    undecidable_end = end if end > partition.committed_end else 0
    return LimitLook(limit, partition.log_start, partition.visible_end, undecidable_end, partition.log.hidden or NONE)


class FullLook(NamedTuple):
    """The fullness of a replica of a stream that refuses what would exceed its limits."""

    is_leader: bool
    leader_epoch: int
    is_exact: bool  # a leader that knows which rows are hidden
    log_start: int
    committed_end: int
    visible_end: int
    log_end: int
    size_bytes: int  # of its segments
    hidden: RowSet


def fullness(node: Node, stream_id: int, number: int) -> FullLook | None:
    """Return the fullness of a replica; None if it is not here."""
    partition = node._partitions.get(PartitionKey(StreamId(stream_id), PartitionId(number)))
    if partition is None:
        return None
    log, is_leader = partition.log, partition.leadership is not None
    return FullLook(
        is_leader,
        partition.leader_epoch,
        is_leader and _is_shown(node, partition),
        partition.log_start,
        partition.committed_end,
        partition.visible_end,
        log.log_end,
        log.live_bytes,
        log.hidden or NONE,
    )


def shown_end(node: Node, stream_id: int, number: int) -> int:
    """Return the end of what readers of a replica are shown; 0 if it is not here."""
    partition = node._partitions.get(PartitionKey(StreamId(stream_id), PartitionId(number)))
    return 0 if partition is None else partition.visible_end


def values_at(node: Node, stream_id: int, number: int, offset: int) -> list[bytes]:
    """Return the value of one row of a replica; empty if the row is not there, or cannot be read."""
    partition = node._partitions.get(PartitionKey(StreamId(stream_id), PartitionId(number)))
    if partition is None or not partition.log_start <= offset < partition.log.log_end:
        return []
    try:
        rows = [ReadRows(bytes(data)) for _, data in partition.view().batches(offset, offset + 1)]
    except (RemoteError, CorruptionError, OSError):
        return []  # a disk that fails; see the faults
    return [value for one in rows for at, value in zip(one.offsets, one.values, strict=True) if at == offset]


def erased_end(node: Node, stream_id: int, number: int) -> int:
    """Return up to which offset of its companion log a partition's secure rows are told as erased."""
    partition = node._partitions.get(PartitionKey(StreamId(stream_id), PartitionId(number)))
    return 0 if partition is None else node._replicas.hidden_rows.erasure(partition).erased_end


def not_erased(node: Node, stream_id: int, number: int) -> list[int]:
    """Return the securely deleted rows whose content a partition's segments hold, though all are told as erased."""
    key = PartitionKey(StreamId(stream_id), PartitionId(number))
    partition, hidden = node._partitions.get(key), node._replicas.hidden_rows
    fold = hidden._folds.get(key)
    if partition is None or fold is None or hidden.erasure(partition).erased_end < hidden.marks_end(partition):
        return []
    secure, view = fold.live.secure.between(0, partition.log._marked_end), partition.log.view()
    found: list[int] = []
    with contextlib.suppress(RemoteError, LogCutError):  # it is corrupt, or was just cut: nothing can be said
        batches = view.batches(
            view.log_start, view.log_end, wants=lambda header: secure.any_in(header.base_offset, header.end_offset)
        )
        for _, data in batches:
            rows = codec.check_rows(data)
            pairs = zip(rows.column("offset").to_pylist(), rows.column("subject").to_pylist(), strict=True)
            found += [offset for offset, subject in pairs if subject and offset in secure]
    return found


class Decided(NamedTuple):
    """Rows of a partition that marks hide on one broker."""

    by_marks: bool  # the leader decides for all; else this broker's cleaner decides alone
    hidden: RowSet  # from its log
    folded_end: int  # of the marks, in the companion log; 0: none
    folded: RowSet  # the fold of these marks
    is_shown: bool  # the broker knows what is hidden, and may show the rest


def decided(node: Node, look: PartitionLook) -> Decided:
    """Return which rows of a partition are hidden on the broker."""
    key = PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))
    log = node._partitions[key].log
    fold = node._replicas.hidden_rows._folds.get(key)
    end, folded = (0, NONE) if fold is None or not fold.live.is_whole else (fold.end, fold.live.hidden)
    is_shown = _is_shown(node, node._partitions[key])
    return Decided(log.config.deciding is not Deciding.ALONE, log.hidden or NONE, end, folded, is_shown)


def _is_shown(node: Node, partition: Partition) -> bool:
    """As `Companions.check_readable`, which notes that it was asked."""
    companions, key = node._replicas.companions, marks_key(partition.key)
    if not partition.stream.has_marks:
        return partition.key.stream_id not in companions._ahead
    companion, passed = node._partitions.get(key), companions._passed.get(key)
    if companion is None or passed is None or companions.unusable(partition) is not None or partition.lags_marks:
        return False
    known_end = companion.committed_end if passed.known_end is None else passed.known_end
    leadership = companion.leadership
    wanted = companion.committed_end if leadership is None else max(known_end, leadership.epoch_start)
    if leadership is None and may_lack_marks(companion):
        return False
    is_whole = partition.visible.shown_marks > 0 or not companion.log_start  # else marks are lacking that were removed
    return companions._knows(companion) and passed.failure is None and passed.end >= wanted and is_whole


def subject_of(node: Node, stream_id: int) -> str:
    """Return the first subject of a stream, which no other stream has or had."""
    return node._cluster.image.streams[StreamId(stream_id)].config.subject


def companion_config(node: Node, look: PartitionLook) -> StreamConfig:
    """Return the config of a companion log."""
    return node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))].stream.config


def untied(node: Node) -> str:
    """Return a text about a companion log that is led without its partition, or in another epoch; empty: none is."""
    for key, partition in node._partitions.items():
        leadership = partition.leadership
        if leadership is None or not is_companion(key.stream_id):
            continue
        target = node._partitions.get(target_key(key))
        beside = None if target is None else target.leadership
        if beside is None or beside.leader_epoch != leadership.leader_epoch or beside.isr != leadership.isr:
            return f"{partition.label} is led in epoch {leadership.leader_epoch}, and its partition is not"
    return ""


def listening(node: Node, sid: int) -> PartitionLook | None:
    """Return the partition that has this subscription, or None; also None if its stream has just been deleted."""
    there = node._listener.subscriptions.by_sid.get(sid)
    return None if there is None or node._partitions.get(there.key) is not there else _look(node, there.key, there)


def hears(node: Node, key: PartitionKey) -> bool:
    """True if the broker is subscribed to the partition's subject, for other partitions that it leads."""
    partition = node._partitions.get(key)
    if partition is None or partition.channel is None:
        return False
    return any(one.channel == partition.channel for one in node._listener.subscriptions.by_sid.values())


def changed(node: Node, seen: Seen) -> list[PartitionLook]:
    """Return the partitions that differ from `seen`, and update `seen`. Called after every event."""
    found = []
    for key, partition in node._partitions.items():
        log = partition.log
        state = (
            log.log_start,
            partition.committed_end,
            log.log_end,
            log.flushed_end,
            partition.leader_epoch,
            partition.leads,
            partition.leadership,
            partition.following,
            partition.stream,
            log._segments.sealed,  # a rewritten segment is a new object
            log.hidden,
        )
        if seen.get(key) != state:
            seen[key] = state
            found.append(_look(node, key, partition))
    return found


def _look(node: Node, key: PartitionKey, partition: Partition) -> PartitionLook:
    log = partition.log
    state = partition.stream.partitions[key.partition]
    config, limit = partition.stream.config, partition.row_limit
    start, end = partition.log_start, partition.committed_end
    is_limited = limit is not None and limit.is_known and not limit.refuses_new and config.retain is Retain.LIMITS
    return PartitionLook(
        key.stream_id,
        config.subject,
        key.partition,
        start,
        end,
        log.log_end,
        log.flushed_end,
        partition.leader_epoch,
        partition.leadership is not None,
        partition.leads,
        partition.following is not None,
        node._settings.broker_id in state.isr,
        state.isr,
        partition.terms.min_isr,
        bool(log._damage.known),  # as `damage`, without its side effect of processing new findings
        log._state is LogState.FENCED,
        state.version,
        config.is_deletion_suspended,
        limit.rows(start, end, log.hidden) if limit is not None and is_limited else None,
        end - start - (0 if log.hidden is None else log.hidden.count_in(start, end)),
        limit.rows_max if limit is not None and is_limited else None,
    )


class Lead(NamedTuple):
    """One partition that a broker leads."""

    key: PartitionKey
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    proposed: frozenset[int]  # members of the proposed ISR that is not answered yet; empty: none
    outside: tuple[int, ...]  # live replicas that are not in sync
    committed_end: int
    log_end: int


def leads(node: Node) -> Iterator[Lead]:
    """Return the partitions with several replicas that the broker leads."""
    for key in node._partitions:
        if (found := lead(node, key)) is not None:
            yield found


def lead(node: Node, key: PartitionKey) -> Lead | None:
    """Return one partition with several replicas that the broker leads, or None."""
    partition = node._partitions.get(key)
    leadership = None if partition is None else partition.leadership
    if leadership is None or len(leadership.replicas) < 2:
        return None
    change = leadership._under_way
    isr = leadership.isr
    return Lead(
        key,
        leadership.leader_epoch,
        leadership.replicas,
        isr,
        frozenset() if change is None else frozenset([member.broker_id for member in change.isr]),
        ()
        if len(isr) == len(leadership.replicas)
        else tuple(
            [one.broker_id for one in leadership._followers if one.incarnation is not None and one.broker_id not in isr]
        ),
        leadership.committed_end,
        leadership.log_end,
    )


class Replica(NamedTuple):
    """One partition that a broker holds."""

    leader: int | None
    leader_epoch: int
    follows: bool
    is_in_sync: bool
    committed_end: int
    log_end: int


def replica(node: Node, key: PartitionKey) -> Replica | None:
    """Return the broker's replica, or None if it is not open."""
    partition = node._partitions.get(key)
    if partition is None:
        return None
    state = partition.stream.partitions[key.partition]
    return Replica(
        state.leader,
        state.leader_epoch,
        partition.following is not None,
        node._settings.broker_id in state.isr,
        partition.committed_end,
        partition.log.log_end,
    )


def metadata_leader(node: Node) -> int:
    """Return the metadata leader as the broker knows it; 0: none."""
    return node._cluster.quorum.leader or 0


def registered_disk(node: Node, broker_id: int) -> str:
    """Return the data directory id under which the other broker is registered; empty: none yet."""
    known = node._cluster.image.brokers.get(BrokerId(broker_id))
    return "" if known is None else known.data_dir_id


def logged(node: Node) -> tuple[int, int]:
    """Return term and index of the last metadata entry on the broker's disk."""
    log = node._cluster.quorum._raft.log
    return log.term_at(log.stable_index) or 0, log.stable_index


def vote(node: Node) -> int:
    """Return the broker's vote in its current Raft term if it is on disk; 0: none."""
    raft = node._cluster.quorum._raft
    is_saved = not node._cluster.quorum._metadata_save.is_under_way and raft._saved[:2] == raft._hard_state()[:2]
    return (raft._vote or 0) if is_saved else 0


def common_end(one: Node, other: Node, key: PartitionKey) -> int:
    """Return the end of the offsets that the same leaders wrote in both brokers' logs."""
    log, others = one._partitions[key].log, other._partitions[key].log
    epoch = min(log.last_epoch, others.last_epoch)
    while epoch:
        (own_epoch, own_end), (their_epoch, their_end) = log.epoch_end(epoch), others.epoch_end(epoch)
        if own_epoch == their_epoch:
            return min(own_end, their_end)
        epoch = min(own_epoch, their_epoch)
    return 0


def failed(node: Node) -> int:
    """Return the number of logs that could not be opened."""
    return len(node._replicas.streams.failures)


def stream_ids(node: Node) -> frozenset[int]:
    """Return the stream ids in the broker's image."""
    return frozenset(node._cluster.image.streams)


def streams(node: Node) -> Iterator[StreamState]:
    """Return the streams in the broker's image."""
    yield from node._cluster.image.streams.values()


def live(node: Node) -> frozenset[BrokerId]:
    """Return the live brokers in the broker's image."""
    return node._cluster.image.live_brokers()


def image(node: Node) -> ClusterImage:
    """Return the metadata image that the broker has applied."""
    return node._cluster.image


def version(node: Node) -> str:
    """Return the version as which the broker runs."""
    return node._cluster._settings.broker_version


def standing(node: Node) -> StandingLook:
    """Return the broker's registration and Raft state."""
    cluster = node._cluster
    quorum, incarnation = cluster.quorum, cluster.registration.incarnation or 0
    raft, told_term = quorum._raft, quorum._told_term  # read once: called after every event
    elected_term = raft._term if raft.is_leader else 0
    return StandingLook(told_term, elected_term, raft._log.applied, told_term != 0, incarnation, quorum.trouble != "")


def cut_tails(node: Node, look: PartitionLook) -> tuple[str, ...]:
    """Return the error at which the start of this run has cut the log; it begins with the path of a segment."""
    partition = node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))]
    return tuple(cut.reason for cut in partition.log.cuts)


def stopped_cleanly(node: Node) -> bool:
    """True if the broker that has just started says that its last stop was clean.

    A broker that is registered says so of the run that goes on, for its next start; one that is alone is at once.
    """
    registration = node._cluster.registration
    return registration._who.clean_stop and registration._who.run_before != registration.incarnation


def counting(node: Node, look: PartitionLook) -> tuple[int, ...] | None:
    """Return the replicas with every acked message of a partition without a leader; None: it has a leader."""
    state = node._cluster.image.streams.get(StreamId(look.stream_id))
    if state is None or state.partitions[look.partition].leader is not None:
        return None
    return tuple(sorted(elections.holders(state.partitions[look.partition])))


def awaited(node: Node) -> Iterator[tuple[int, int, str]]:
    """Return stream, partition and disk where only a replica with a lost disk could lead.

    Partitions for which another replica counts are left out: that one leads as soon as it is registered.
    """
    for state in node._cluster.image.streams.values():
        for number, partition in enumerate(state.partitions):
            is_alone = not elections.holders(partition)
            if partition.leader is None and is_alone and partition.awaited_data_dir_id is not None:
                yield state.stream_id, number, partition.awaited_data_dir_id


def in_recovery(node: Node) -> Iterator[tuple[int, int, frozenset[BrokerId]]]:
    """Return stream, partition and counting replicas in unclean recovery: the longest log is to lead (KIP-966)."""
    live = node._cluster.image.live_brokers()
    for state in node._cluster.image.streams.values():
        for number, partition in enumerate(state.partitions):
            if elections.recovers(partition, live):
                yield state.stream_id, number, elections.holders(partition)


def held(node: Node) -> Set[PartitionKey]:
    """Return the open partitions."""
    return node._partitions.keys()


def misplaced(node: Node) -> str | None:
    """Return a text about an observer that leads or is in a voting set of its partition; None: there is none."""
    own = node._settings.broker_id
    for state in node._cluster.image.streams.values():
        for number, partition in enumerate(state.partitions):
            if not partition.observers:
                continue
            deciding = {*partition.replicas, *partition.isr, *partition.eligible, *partition.unsure, partition.leader}
            if wrong := deciding.intersection(partition.observers):
                return f"{state.name} partition {number}: {wrong} observes, and has a say: {partition}"
            there = node._partitions.get(PartitionKey(state.stream_id, PartitionId(number)))
            if own in partition.observers and there is not None and there.leadership is not None:
                return f"{state.name} partition {number}: it observes, and leads: {partition}"
    return None


def users(node: Node) -> tuple[int, Mapping[str, User]]:
    """Return the index of the last user change in the broker's image, and the users."""
    image = node._cluster.image
    return image.acted, image.users


def segment_bytes(node: Node, name: str) -> int:
    """Return a stream's segment_bytes in the broker's image; 0: unknown stream."""
    image = node._cluster.image
    return image.by_name(name).config.segment_bytes if name in image.names else 0


def image_digest(node: Node) -> str:
    """Return a short hash of the image."""
    return sha256(encode_image(node._cluster.image)).hexdigest()[:16]


_COUNTED = {
    "cleaned_segments": "segments written anew",
    "scrub_passes": "passes of scrubbers",
    "repaired_ranges": "mended ranges",
}


def counted(node: Node) -> dict[str, int]:
    """Return the node's counters since its start, under the simulator's names."""
    return {name: node._budget.counters[counter] for counter, name in _COUNTED.items()}


def written_anew(node: Node, look: PartitionLook) -> tuple[str, ...]:
    """Return the segment files of a partition that the cleaner has rewritten."""
    partition = node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))]
    paths = [segment.path for segment in partition.log._segments.sealed]
    names = [files.parsed(path.rpartition("/")[2]) for path in paths]
    return tuple([path for path, name in zip(paths, names, strict=True) if name is not None and name.generation])


def batches(
    node: Node, look: PartitionLook, start: int, end: int, by_key: dict[int, CompactedRow] | None = None
) -> list[Batch]:
    """Return the verified batches from `start` to `end` on disk: headers, and rows from `start` on.

    `by_key` is filled with the rows' keys and tombstone flags. Raises the log's errors, and CorruptionError if a file
    is shorter than its index says.
    """
    partition = node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))]
    view = partition.log._view()
    found_batches = []
    first = start
    while start < end and (found := view.slice(start, end=end, bytes_max=_READ_BYTES)) is not None:
        data = memoryview(_bytes_of(partition, found))
        while data:
            header = codec.verify(data[: codec.read_header(data).size_bytes], file=found.path)
            plain = memoryview(codec.uncompressed(data[: header.size_bytes], file=found.path))
            found_batches.append((header, _rows(plain, first)))
            if by_key is not None:
                by_key.update(_by_key(plain, first))
            data = data[header.size_bytes :]
        start = found.end_offset
    return found_batches


def raw_batches(node: Node, look: PartitionLook, start: int, end: int) -> Iterator[bytes]:
    """Return the stored bytes of the batches from the one with `start` to `end`, several batches at once."""
    partition = node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))]
    view = partition.log._view()
    while start < end and (found := view.slice(start, end=end, bytes_max=_READ_BYTES)) is not None:
        yield _bytes_of(partition, found)
        start = found.end_offset


def _bytes_of(partition: Partition, found: Slice) -> bytes:
    """Read the bytes of a slice. Raise CorruptionError if the file is too short."""
    file = partition.vfs.open(found.path, read_only=True)
    try:
        data = file.read_at(found.position, found.length)
    finally:
        file.close()
    if len(data) < found.length:
        raise CorruptionError(found.path, found.position + len(data), f"{found.length} bytes", f"{len(data)} bytes")
    return data


def headers_at(node: Node, look: PartitionLook, offset: int) -> bytes | None:
    """Return the headers of the message at an offset; None without message or headers. Raises the log's errors."""
    partition = node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))]
    for _, data in partition.log._view().batches(offset, offset + 1):
        offsets = codec.offsets(data)
        is_there, ends, headers = _strings(memoryview(data))[_HEADERS]
        for row in range(len(offsets)):
            if offsets[row] == offset and _is_there(is_there, row):
                return bytes(headers[ends[row] : ends[row + 1]])
    return None


_Cells = tuple[memoryview, memoryview, memoryview]  # of a string column: validity, ends, values


def _strings(data: memoryview) -> list[_Cells]:
    _, _, _, _, *columns = codec.buffers(data)
    return [(columns[at], columns[at + 1].cast("i"), columns[at + 2]) for at in range(0, len(columns), 3)]


def _is_there(validity: memoryview, row: int) -> int:
    return not validity or validity[row // 8] >> row % 8 & 1


def _by_key(data: memoryview, start: int) -> Iterator[tuple[int, CompactedRow]]:
    strings = _strings(data)
    (keys_there, ends, keys), (values_there, _, _) = strings[_KEY], strings[_VALUE]
    for row, offset in enumerate(codec.offsets(data)):
        if offset >= start:
            key = bytes(keys[ends[row] : ends[row + 1]]) if _is_there(keys_there, row) else None
            yield offset, CompactedRow(key, key is not None and not _is_there(values_there, row))


def _rows(data: memoryview, start: int) -> list[tuple[int, int]]:
    offsets, timestamps = codec.offsets(data), codec.timestamps(data)
    cells = _strings(data)
    rows = []
    for row, (offset, timestamp_us) in enumerate(zip(offsets, timestamps, strict=True)):
        if offset < start:
            continue
        found = timestamp_us & 0xFFFFFFFF
        for validity, ends, values in cells:
            found = crc32c(values[ends[row] : ends[row + 1]], found ^ _is_there(validity, row))
        rows.append((offset, found))
    return rows
