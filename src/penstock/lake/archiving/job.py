"""The loop of an archive: plans a batch, has a runner write it, commits it, reports it. Each message is there once.

Rules: the commit that adds rows to the table also records the end offset of each partition (`penstock.lake.tables`). A
batch is a range of offsets of each partition, from the table's end on. Nothing is reported to the brokers before its
commit is on disk, because they may then delete the messages. After any crash the next run, by whatever runner, reads
the end offsets from the table and continues.

| step                                  | the next run after a crash at the end of this step              |
|---------------------------------------|-----------------------------------------------------------------|
| plan, from the table's end offsets    | plans again                                                     |
| tasks write files                     | writes other files; the old ones are not part of the table      |
| commit: files and end offsets         | continues from the new end offsets                              |
| report to the brokers: the group's    | reports both again                                              |
| committed offsets, the archived ends  |                                                                 |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import OperationalError, PenstockError
from penstock.client.blocking.client import Client
from penstock.client.errors import StreamNotFound
from penstock.client.values import EARLIEST, LATEST
from penstock.lake.archiving.decoding import DATA, rejects_schema
from penstock.lake.archiving.plan import Plan
from penstock.lake.archiving.tasks import Batch, Runner, packed
from penstock.lake.progress import BatchDone, Pace, Report, no_report
from penstock.lake.reading.data_loss import DataLossError, passed_over, warn
from penstock.lake.reading.divergence import check_held, checked_cluster
from penstock.lake.reading.pieces import Piece, cut, lag_of, log_starts_of, piece_of, row_bytes, share
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.selection import Chosen, choose, is_selected
from penstock.lake.tables.data_files import Writing, empty_file
from penstock.lake.tables.folder import OWN, REJECTS, OvertakenError, locked, make_folder, sync_up
from penstock.lake.tables.formats import open_table
from penstock.lake.tables.manifest import ArchiveManifest, read_about, write_about
from penstock.lake.tables.table import Commit, LakeFile, Table
from penstock.messages import StreamInfo

_log = logging.getLogger(__name__)

_CHOOSE_S = 10.0  # interval between two look-ups of the streams that match a pattern


class Archived(NamedTuple):
    """Result of a run of `archive`: messages, files and batches written, and the archive's end offset per partition.

    `name`: the archive's name at the brokers; the committed offsets of the group `archive-NAME` are its progress.
    `rejected`: number of messages whose value could not be decoded; in the archive their `data` is null, and the folder
    `_rejects` has them with the reasons.
    """

    rows: int
    files: int
    batches: int
    ends: Mapping[Key, int]
    name: str = ""
    rejected: int = 0


def chosen_streams(client: Client, plan: Plan) -> Chosen:
    """Return the streams and partitions of an archive. Raise ConfigError, StreamNotFound or NotAuthorized."""
    return choose(client, plan.selection, plan.timeout_s, may_lack=not plan.fail_on_data_loss)


def rejects_of(plan: Plan) -> Table | None:
    """Return the table of values that cannot be decoded; None if nothing is decoded."""
    return open_table(plan.root / REJECTS, plan.format, rejects_schema()) if plan.decode else None


def check_unlocked(plan: Plan) -> None:
    """Raise OvertakenError if another job writes the archive."""
    if plan.root.exists():
        with locked(plan.root):
            pass


def _go_on() -> None:
    pass


class ArchiveJob:
    """One run of an archive. `write`: carries out the tasks of a batch.

    `table`: the archive's; `rejects`: the table of values that cannot be decoded. `check_stop` is called between two
    batches; what it raises ends the run.
    """

    def __init__(
        self,
        client: Client,
        plan: Plan,
        write: Runner,
        table: Table,
        rejects: Table | None = None,
        check_stop: Callable[[], None] = _go_on,
    ) -> None:
        self._client = client
        self._plan = plan
        self._run_tasks = write
        self._table = table
        self._rejects = rejects
        self._check_stop = check_stop
        self._name = plan.name
        self._chosen_s = 0.0
        self._told_ends: dict[str, dict[int, Position]] = {}
        self._log_starts: dict[Key, int] = {}
        self._left_out: dict[str, str] = {}  # streams that cannot be continued, and why; the others are archived
        self._agreed: dict[Key, tuple[Position, int]] = {}  # last checked position, and the leader epoch then

    def run(self, *, once: bool, report: Report = no_report) -> Archived:
        """Archive as described for `archive`, and hold the archive's lock meanwhile."""
        with locked(self._plan.root):
            return self._run(once, report)

    def _run(self, once: bool, report: Report) -> Archived:
        plan = self._plan
        chosen = self._choose()
        self._table.finish()
        if self._rejects is not None:
            make_folder(plan.root / REJECTS)
            self._rejects.finish()
        sync_up([plan.root / OWN], plan.root)  # the last job may have been killed before it has synced its manifest
        begins = self._begin(chosen)
        self._drop_staged()  # not before: of lost commits they may be all that is left
        until = self._log_ends(chosen, wait=True) if once else None
        self._check_agrees(chosen, begins, until)
        if self._rejects is not None:
            self._check_agrees(chosen, self._rejects.ends(begins), until)
        self._tell(chosen, begins)
        pace = Pace(plan.trigger_s, plan.rows_min, plan.delay_s)
        rows = files = batches = rejected = 0
        while True:
            self._check_stop()
            if not once:
                chosen, begins = self._chosen_again(chosen, begins)
            log_ends = self._log_ends(chosen) if until is None else until
            self._check_agrees(chosen, begins, log_ends)
            waiting = {key: max(0, end.offset - begins[key].offset) for key, end in log_ends.items()}
            count = sum(waiting.values())
            if once and not count:
                if self._left_out:
                    raise DataLossError("; ".join([*self._left_out.values(), "all other streams were archived"]))
                offsets = {key: at.offset for key, at in begins.items()}
                return Archived(rows, files, batches, offsets, self._name, rejected)
            if not (once or pace.is_due(count)):
                time.sleep(limits.ARCHIVE_POLL_S)
                continue
            pace.begin()
            started_s = time.monotonic()
            ends = dict(begins)
            for key, more in share(waiting, plan.rows_max).items():
                if more:
                    ends[key] = Position(begins[key].offset + more, log_ends[key].leader_epoch)
            made, bad = self._done(chosen, begins, ends)
            self._say_rejected(bad, rejected)
            rejected += bad
            self._table.commit(Commit(tuple(made), begins, ends))
            lag = lag_of(ends, self._log_starts, log_ends)
            begins = ends
            self._tell(chosen, begins)
            batches += 1
            files += len(made)
            rows += _rows(made)
            size = sum(one.size_bytes for one in made)
            seconds = time.monotonic() - started_s
            told = None if self._rejects is None else bad
            report(BatchDone(batches, _rows(made), size, seconds, lag, told))

    def _drop_staged(self) -> None:
        self._table.drop_staged()
        if self._rejects is not None:
            self._rejects.drop_staged()

    # Start and end offsets

    def _choose(self) -> Chosen:
        """Return the streams that can be archived. Raise DataLossError if there is none."""
        self._chosen_s = time.monotonic()
        chosen, about = chosen_streams(self._client, self._plan), read_about(self._plan.root)
        ids = about.stream_ids if about else {}
        anew = sorted(name for name, number in chosen.stream_ids.items() if ids.get(name, number) != number)
        if anew and about:
            self._checked_cluster(about.cluster)  # the streams of another cluster are others, too
        for name in anew:
            text = f"stream {name} was deleted and made anew since it was archived in {self._plan.root}"
            text += "; archive the new one elsewhere"
            if len(chosen.streams) == 1:
                raise DataLossError(text)
            if name not in self._left_out:
                self._left_out[name] = text
                warn(text)
            chosen = chosen.without([name])
        return chosen

    def _chosen_again(self, chosen: Chosen, begins: dict[Key, Position]) -> tuple[Chosen, dict[Key, Position]]:
        """Look up the streams again every _CHOOSE_S; return them and their next offsets."""
        if time.monotonic() - self._chosen_s < _CHOOSE_S:
            return chosen, begins
        now = self._choose()
        for name in sorted(chosen.streams.keys() - now.streams.keys() - self._left_out.keys()):
            text = f"stream {name} was deleted while it was being archived"
            passed_over(text, fail=self._plan.fail_on_data_loss)
        if now.keys == chosen.keys and now.stream_ids == chosen.stream_ids:
            return now, begins
        return now, self._begin(now)

    def _begin(self, chosen: Chosen) -> dict[Key, Position]:
        """Return each partition's next offset: the table's end, or the partition's start in the archive.

        That is the log start offset when its stream was first selected; 0 for a partition that was added later.
        """
        plan = self._plan
        about = read_about(plan.root)
        ids = dict(about.stream_ids) if about else {}
        cluster = self._checked_cluster(about.cluster if about else "")
        for name in sorted(ids.keys() - chosen.streams.keys() - self._left_out.keys()):
            if is_selected(name, plan.selection):
                warn(f"stream {name} was deleted: its messages behind the archive's end were not archived")
        if about is not None and (about.format, about.decode, about.schema) != (plan.format, plan.decode, plan.schema):
            raise OvertakenError(f"{plan.root}: another job has begun this archive; run it again")
        starts = dict(about.starts) if about else {}
        starts |= {key: Position(0) for key in chosen.keys if key.stream in ids and key not in starts}
        new = Chosen(chosen.streams, tuple(key for key in chosen.keys if key not in starts))
        starts |= self._starts(new)
        self._name = (about.name if about else "") or plan.name  # another job may have written it first
        now = ArchiveManifest(
            plan.format, ids | chosen.stream_ids, starts, plan.decode, plan.schema, self._name, cluster
        )
        begins = {key: starts[key] for key in chosen.keys} | self._table.ends(chosen.keys)
        self._check_reported(chosen, begins, about)
        if now != about:
            write_about(plan.root, now)
        return begins

    def _checked_cluster(self, known: str) -> str:
        what = f"the archive in {self._plan.root}"
        return checked_cluster(self._client, known, what, "archive elsewhere", self._plan.timeout_s)

    def _check_reported(self, chosen: Chosen, begins: Mapping[Key, Position], before: ArchiveManifest | None) -> None:
        """Raise DataLossError if the archive lost messages that it had reported, and the log has deleted since.

        `before`: what the archive said of itself at the start. An older copy may not even know the stream.
        """
        for key, at in begins.items():
            now = chosen.streams[key.stream].partitions[key.partition]
            told, log_start = now.archives.get(self._name, 0), int(now.log_start or 0)
            is_known = before is None or key.stream in before.stream_ids
            end = at.offset if is_known else 0
            if end < min(told, log_start):
                where = f"{end} of stream {key.stream}, partition {key.partition}"
                text = f"the archive in {self._plan.root} ends at {where}, but it had reported {told} to the brokers"
                text += f": it has lost commits, or is an older copy, and the log begins at {log_start} now"
                passed_over(f"{text}. Restore the archive from a newer copy", fail=self._plan.fail_on_data_loss)

    def _starts(self, chosen: Chosen) -> dict[Key, Position]:
        """Return the log start offset of each partition."""
        out = {}
        for key in chosen.keys:
            info = chosen.streams[key.stream]
            found = self._client.offsets(info, EARLIEST, partition=key.partition, timeout=self._plan.timeout_s)
            out[key] = Position(found.offset, int(info.partitions[key.partition].leader_epoch))
        return out

    def _log_ends(self, chosen: Chosen, *, wait: bool = False) -> dict[Key, Position]:
        """Return the high watermarks (`committed_end`), without partitions whose leader does not answer.

        With `wait`, wait for those leaders, and raise OperationalError if one does not answer in time.
        """
        ends = {}
        for name in chosen.streams:
            try:
                info = self._stream(chosen, name)
            except DataLossError:
                if wait or len(chosen.streams) == 1:
                    raise
                self._chosen_s = -_CHOOSE_S  # look at once which streams there are; the others go on
                continue
            if wait:
                info = self._answered(chosen, info)
            for one in info.partitions:
                key = Key(name, int(one.partition))
                if one.committed_end is not None and key in chosen.keys:
                    ends[key] = Position(int(one.committed_end), int(one.leader_epoch))
        return ends

    def _answered(self, chosen: Chosen, info: StreamInfo) -> StreamInfo:
        """Wait until the leaders of all archived partitions have answered, and return the stream."""
        silent = _silent(chosen, info)
        for number in silent:
            try:
                self._client.offsets(info, LATEST, partition=number, timeout=self._plan.timeout_s)
            except PenstockError as error:
                text = f"the leader of stream {info.name}, partition {number}, does not answer"
                raise OperationalError(f"{text}, and its messages cannot be archived: {error}") from error
        if not silent:
            return info
        info = self._stream(chosen, info.name)
        if silent := _silent(chosen, info):
            text = f"the leader of stream {info.name}, partition {silent[0]}, does not answer"
            raise OperationalError(f"{text}, and its messages cannot be archived")
        return info

    def _check_agrees(
        self, chosen: Chosen, known: Mapping[Key, Position], log_ends: Mapping[Key, Position] | None = None
    ) -> None:
        """Raise DataLossError if the log no longer holds what was archived. Unavailable partitions are not checked."""
        if log_ends is None:
            log_ends = self._log_ends(chosen)
        for key, at in known.items():
            if (end := log_ends.get(key)) is None or self._agreed.get(key) == (at, end.leader_epoch):
                continue
            if end.leader_epoch != at.leader_epoch or end.offset < at.offset:
                info = self._stream(chosen, key.stream)
                check_held(self._client, info, key, at, self._plan.timeout_s)
            self._agreed[key] = (at, end.leader_epoch)

    def _stream(self, chosen: Chosen, name: str) -> StreamInfo:
        try:
            info = self._client.stream(name, timeout=self._plan.timeout_s)
        except StreamNotFound as error:
            raise DataLossError(f"stream {name} was deleted while it was being archived") from error
        if info.stream_id != chosen.streams[name].stream_id:
            raise DataLossError(f"stream {name} was deleted and made anew while it was being archived")
        self._log_starts |= log_starts_of(info)
        return info

    # A batch

    def _write(
        self,
        chosen: Chosen,
        begins: Mapping[Key, Position],
        ends: Mapping[Key, Position],
        rejects_from: Mapping[Key, Position],
    ) -> list[LakeFile]:
        plan = self._plan
        pieces = []
        for key, end in ends.items():
            if end.offset > begins[key].offset:
                info = self._stream(chosen, key.stream)
                piece = piece_of(info, key, begins[key], end, fail=plan.fail_on_data_loss)
                pieces += [piece] if piece else []
        sizes = row_bytes(chosen)
        tasks = packed(cut(pieces, sizes, None, None), sizes, plan.file_bytes)
        if not tasks:
            return []
        with self._as_data_loss(chosen, ends):
            return self._run_tasks(self._batch(tasks, rejects_from))

    def _batch(self, tasks: list[list[Piece]], rejects_from: Mapping[Key, Position]) -> Batch:
        plan = self._plan
        rows = Writing(str(plan.root), plan.format == "parquet", plan.format == "iceberg", plan.file_bytes)
        if not plan.decode:
            return Batch(tasks, rows)
        rejects = rows._replace(root=str(plan.root / REJECTS), is_rejects=True)
        begins = {key: begin.offset for key, begin in rejects_from.items()}
        return Batch(tasks, rows, rejects, begins, plan.decode, plan.schema, plan.typed)

    def _say_rejected(self, bad: int, before: int) -> None:
        """Warn of the first rejected values of a run: their `data` is null in the archive."""
        if bad and not before:
            text = f"{bad} values of a batch of {self._plan.stream} could not be decoded; their column {DATA} is null"
            warn(f"{text}. The values and the reasons are in {self._plan.root / REJECTS}")

    def _done(
        self, chosen: Chosen, begins: Mapping[Key, Position], ends: Mapping[Key, Position]
    ) -> tuple[list[LakeFile], int]:
        """Write a batch; return its files, and the number of rejected values.

        The rejects are committed first, and continue from the end of their own table, so that none is there twice.
        """
        known = {} if self._rejects is None else self._rejects.ends(begins)
        from_there = {key: _further(begin, known.get(key, begin)) for key, begin in begins.items()}
        made = self._write(chosen, begins, ends, from_there)
        self._check_agrees(chosen, ends)  # the log may have been truncated while it was read
        if self._rejects is None:
            return made, 0
        up_to = {key: _further(end, from_there[key]) for key, end in ends.items()}
        rejects = [one for one in made if one.is_rejects]
        first = [] if rejects or known else self._first_rejects(ends)
        self._rejects.commit(Commit((*first, *rejects), from_there, up_to))
        return [one for one in made if not one.is_rejects], _rows(rejects)

    def _first_rejects(self, ends: Mapping[Key, Position]) -> list[LakeFile]:
        """Return the first file of the rejects if there is no reject yet: without rows, so that readers find columns.

        In the formats other than Parquet the table's metadata hold the columns.
        """
        if self._plan.format != "parquet":
            return []
        writing = Writing(str(self._plan.root / REJECTS), True, False, self._plan.file_bytes, True)
        return [empty_file(writing, rejects_schema(), min(ends).stream)]

    @contextmanager
    def _as_data_loss(self, chosen: Chosen, ends: Mapping[Key, Position]) -> Iterator[None]:
        """Raise DataLossError instead of an error of the runner's own if the log was truncated."""
        try:
            yield
        except PenstockError:
            raise
        except Exception:
            self._check_agrees(chosen, ends)
            raise

    # Reports to the brokers

    def _tell(self, chosen: Chosen, ends: Mapping[Key, Position]) -> None:
        """Report the archive's progress to the brokers. A failure is only logged: the next batch reports again.

        Of a stream that was made anew meanwhile nothing is reported: its messages are others.
        """
        client, timeout_s = self._client, self._plan.timeout_s
        for name in sorted({key.stream for key in ends}):
            told_before = self._told_ends.get(name, {})
            places = {key.partition: end for key, end in ends.items() if key.stream == name}
            places = {number: end for number, end in places.items() if told_before.get(number) != end}
            if not places:
                continue
            offsets = {number: end.offset for number, end in places.items()}
            failed: PenstockError | None = None
            try:
                info = self._stream(chosen, name)
            except PenstockError as error:
                _log.warning("the progress of the archive of %s was not reported to the brokers: %s", name, error)
                continue
            # Each by itself: who may not commit the group's offsets must not keep the brokers from deleting for ever.
            for tell in (
                partial(client.groups.commit, group_of(self._name), info, offsets, timeout=timeout_s),
                partial(report_archived, client, info, places, self._name, timeout_s),
            ):
                try:
                    tell()
                except PenstockError as error:
                    failed = failed or error
            if failed is None:
                self._told_ends[name] = told_before | places
            else:
                _log.warning("the progress of the archive of %s was not reported to the brokers: %s", name, failed)


def group_of(name: str) -> str:
    """Return the consumer group whose committed offsets are an archive's progress."""
    return f"archive-{name}"


def report_archived(
    client: Client, stream: StreamInfo, ends: Mapping[int, Position], archive_name: str, timeout_s: float
) -> None:
    """Report the archived end offsets of a stream, so that retention may delete messages of an archive hold.

    Each end is sent with the leader epoch under which it was read, because the log may have been truncated since.
    """
    for partition, end in ends.items():
        epoch = end.leader_epoch or None
        client.report_archived(
            stream, partition, end.offset, archive=archive_name, leader_epoch=epoch, timeout=timeout_s
        )


def _rows(files: Sequence[LakeFile]) -> int:
    return sum(one.rows for one in files)


def _further(one: Position, other: Position) -> Position:
    return other if other.offset > one.offset else one


def _silent(chosen: Chosen, info: StreamInfo) -> list[int]:
    """Return the archived partitions whose leader does not answer."""
    wanted = {key.partition for key in chosen.keys if key.stream == info.name}
    return [int(one.partition) for one in info.partitions if one.committed_end is None and one.partition in wanted]
