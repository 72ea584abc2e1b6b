"""The job `audit`: counts messages, finds gaps and duplicates, and compares an archive with the log.

Rules: Spark computes everything with its own functions; no Python runs per row. A range is `range_rows` offsets of a
partition. Its checksum is the XOR of the hashes of its rows; a hash covers offset, timestamp, subject, key, value and
headers. The hash includes the offset, so swapped rows change the checksum; the division into files and batches does
not. Two equal rows cancel each other out in an XOR, so the row count is compared, too.

    checksum(range) = (count, xor over rows of xxhash64(offset, timestamp, subject, key, value, headers))

If a range differs, its rows are compared by offset: missing, changed, duplicate, or only in the archive. Rows that are
only in the archive are expected if the stream removes messages from the middle of the log: compaction, time to live,
rollups. Deleted messages are no gaps, and may be in the archive: their partition's leader says which were deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.client.errors import MessageNotFound
from penstock.lake.reading.data_loss import advising
from penstock.lake.reading.positions import Key
from penstock.lake.reading.selection import choose
from penstock.messages import StreamInfo
from penstock.spark import brokers
from penstock.spark.jobs.parameter_names import options_named
from penstock.spark.options.options import LOSS_ADVICE, SourceOptions, source_options
from penstock.spark.options.positions import Earliest
from penstock.spark.reading.history import History
from penstock.spark.reading.planning import find
from penstock.spark.runtime.sessions import session_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_HASHED = ("offset", "timestamp", "subject", "key", "value", "headers")
_MESSAGE_ID = "Nats-Msg-Id"


class RangeSum(NamedTuple):
    """Row count and checksum of the `range_rows` offsets of a partition from `start` on."""

    topic: str
    partition: int
    start: int
    rows: int
    checksum: int  # unsigned, 64 bits


class Group(NamedTuple):
    """Statistics of the messages on one subject, or with one key."""

    name: str | bytes | None
    messages: int
    bytes: int  # of values
    first: datetime
    last: datetime


class Gap(NamedTuple):
    """Offsets `[start, end)` without a message, not counting deleted ones at its beginning.

    `is_expected`: True if the stream may remove messages from the middle of its log.
    """

    topic: str
    partition: int
    start: int
    end: int
    is_expected: bool


class Repeated(NamedTuple):
    """A `Nats-Msg-Id` that several messages of a stream have."""

    topic: str
    message_id: str
    messages: int
    offsets: tuple[tuple[int, int], ...]  # (partition, offset), at most ten


class Difference(NamedTuple):
    """A range in which log and archive differ; all counts are of offsets.

    `is_mistake`: True unless deletions, or the stream's compaction, time to live or rollups, explain the difference.
    """

    topic: str
    partition: int
    start: int
    end: int
    missing: int  # in the log, not in the archive
    changed: int  # in both, with different content
    twice: int  # offsets that the archive has more than once
    only_archived: int  # in the archive, not in the log
    is_mistake: bool


@dataclass(frozen=True)
class Span:
    """The audited offsets of one partition, and the part of them that was compared with the archive."""

    key: Key
    start: int
    end: int
    compared_start: int = 0
    compared_end: int = 0

    @property
    def lacking(self) -> tuple[tuple[int, int], ...]:
        """Audited ranges `[start, end)` that the archive does not cover."""
        if self.compared_start >= self.compared_end:
            return ((self.start, self.end),) if self.start < self.end else ()
        parts = (self.start, self.compared_start), (self.compared_end, self.end)
        return tuple(one for one in parts if one[0] < one[1])


@dataclass(frozen=True)
class Audit:
    """The findings of an audit.

    `is_equal`: True if all partitions with messages were compared, without a `Difference` that is a mistake; False if
    not; None without an archive.
    """

    spans: tuple[Span, ...]
    groups: tuple[Group, ...]
    gaps: tuple[Gap, ...]
    repeated: tuple[Repeated, ...]
    sums: tuple[RangeSum, ...] = field(repr=False, default=())
    differences: tuple[Difference, ...] = ()
    is_equal: bool | None = None

    @property
    def messages(self) -> int:
        """Number of messages that were audited."""
        return sum(one.rows for one in self.sums)

    @property
    def is_good(self) -> bool:
        """True if all gaps are expected and `is_equal` is not False."""
        return self.is_equal is not False and all(one.is_expected for one in self.gaps)


def audit(
    stream: str = "",
    *,
    subject: str = "",
    start: str = "earliest",
    end: str = "latest",
    by: str = "subject",
    against: str | Path | None = None,
    top: int = 20,
    range_rows: int = limits.AUDIT_RANGE_ROWS_DEFAULT,
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    servers: str = "",
) -> Audit:
    """Audit the messages of `stream` (names separated by commas, or patterns), or those on `subject` in all streams.

    `start`, `end`: "earliest", "latest", or a time such as `2026-11-20T10:00:00Z`. `by`: "subject" or "key"; the `top`
    ones with the most messages are reported. `against`: folder of an archive to compare with the log; `subject` is not
    allowed then. Both must be equal at all offsets that both cover, and the archive must cover some offsets of each
    partition with messages. `range_rows`: number of offsets for each checksum.

    Raise ConfigError if an argument is invalid, DataLossError if messages were deleted from the log during the audit,
    OperationalError if PySpark or Java is missing, or an error of the client, such as StreamNotFound.
    """
    if by not in ("subject", "key"):
        raise ConfigError([f"by: it is {by!r}; there are subject and key"])
    if against is not None and subject:
        raise ConfigError(["subject: a comparison with an archive is of whole streams; leave it out"])
    options = {"stream": stream, "subject": subject, "servers": servers}
    options |= _place("starting", start) | _place("ending", end)
    with options_named({"startingTimestamp": "start", "endingTimestamp": "end"}):
        source = source_options({name: text for name, text in options.items() if text})
    with advising("Run the audit again, on the messages that the log still has", LOSS_ADVICE):
        choose(brokers.client(source.servers, source.timeout_s), source.selection, source.timeout_s)
        session = session_of(spark, "audit")
        return Auditor(session, source, against, range_rows).run(by, top)


def _place(which: str, text: str) -> dict[str, str]:
    if text in ("earliest", "latest"):
        return {f"{which}Offsets": text}
    found = {f"{which}Timestamp": text}
    if which == "starting":
        found["startingOffsetsByTimestampStrategy"] = "latest"
    return found


class Auditor:
    """One audit, of the offsets between the start and end offsets at its beginning."""

    def __init__(self, spark: SparkSession, source: SourceOptions, against: str | Path | None, range_rows: int) -> None:
        self._spark = spark
        self._source = source
        self._range_rows = range_rows
        self._client = brokers.client(source.servers, source.timeout_s)
        self._chosen = choose(self._client, source.selection, source.timeout_s)
        self._against = None if against is None else Path(against).absolute()
        self._history = None if against is None else History(str(against), self._chosen, self._client, source.timeout_s)

    def run(self, by: str, top: int) -> Audit:
        """Run the audit. `by`, `top`: as in `audit`."""
        spans = self._spans()
        log = self._kept(self._rows({one.key: (one.start, one.end) for one in spans}), by).persist()
        try:
            return self._told(log, spans, top)
        finally:
            log.unpersist()

    def _told(self, log: DataFrame, spans: tuple[Span, ...], top: int) -> Audit:
        sums = self._sums(log)
        groups = self._groups(log, top)
        found = Audit(spans, groups, tuple(self._lost(self._gaps(log, sums, spans))), self._repeated(log, top), sums)
        if self._history is None:
            return found
        differences = tuple(self._compare(log, sums, spans))
        compared = [one for one in spans if one.compared_start < one.compared_end]
        are_all = bool(compared) and all(one.start == one.end for one in spans if one not in compared)
        is_equal = are_all and not any(one.is_mistake for one in differences)
        return replace(found, differences=differences, is_equal=is_equal)

    # Reading

    def _spans(self) -> tuple[Span, ...]:
        source = self._source
        starts = find(self._client, self._chosen, source.start or Earliest(), source)
        ends = find(self._client, self._chosen, source.end, source, otherwise=-1)
        out = []
        for key in self._chosen.keys:
            start, end = starts[key].offset, max(starts[key].offset, ends[key].offset)
            first, last = start, start
            if self._history is not None and key in self._history.starts:
                first = min(end, max(start, self._history.starts[key]))
                last = max(first, min(end, self._history.ends[key]))
            out.append(Span(key, start, end, first, last))
        return tuple(out)

    def _rows(self, wanted: Mapping[Key, tuple[int, int]], archive: Path | None = None) -> DataFrame:
        """Return the rows at these offsets, from the log or from an archive, with their range number and hash."""
        from pyspark.sql import functions as sql

        rows = self._loaded(wanted, archive)
        present = [sql.col(name).isNull() for name in ("key", "value", "headers")]  # xxhash64 skips nulls
        hashed = sql.xxhash64(*[sql.col(name) for name in _HASHED], *present)
        return rows.withColumn("range", sql.floor(sql.col("offset") / self._range_rows)).withColumn("hash", hashed)

    def _kept(self, rows: DataFrame, by: str) -> DataFrame:
        """Select the columns to cache, without values and headers, so that the log is read only once."""
        from pyspark.sql import functions as sql

        ids = sql.expr(f"get(filter(headers, one -> lower(one.key) = '{_MESSAGE_ID.lower()}'), 0).value")
        group, size = sql.col(by).alias("group"), sql.length("value").alias("size")
        return rows.select("topic", "partition", "offset", "range", "hash", "timestamp", group, size, ids.alias("id"))

    def _loaded(self, wanted: Mapping[Key, tuple[int, int]], archive: Path | None = None) -> DataFrame:
        """Return the rows at these offsets, with all columns."""
        assign: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for key, (start, end) in wanted.items():
            assign.setdefault(key.stream, []).append(key.partition)
            starts.setdefault(key.stream, {})[str(key.partition)] = start
            ends.setdefault(key.stream, {})[str(key.partition)] = end
        options = {
            "servers": ",".join(self._source.servers),
            "assign": json.dumps(assign),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "includeHeaders": "true",
        }
        if archive is not None:
            options["archive"] = str(archive)
        if self._source.selection.subjects:
            options["subjects"] = ",".join(self._source.selection.subjects)
        return self._spark.read.format("penstock").options(**options).load()

    def _sums(self, rows: DataFrame) -> tuple[RangeSum, ...]:
        from pyspark.sql import functions as sql

        found = rows.groupBy("topic", "partition", "range").agg(sql.count("*"), sql.bit_xor("hash")).collect()
        made = [RangeSum(row[0], row[1], row[2] * self._range_rows, row[3], row[4] % 2**64) for row in found]
        return tuple(sorted(made))

    def _groups(self, rows: DataFrame, top: int) -> tuple[Group, ...]:
        from pyspark.sql import functions as sql

        size = sql.coalesce(sql.sum("size"), sql.lit(0))
        moments = [sql.unix_micros(made("timestamp")) for made in (sql.min, sql.max)]
        found = rows.groupBy("group").agg(sql.count("*").alias("messages"), size, *moments)
        listed = found.orderBy(sql.desc("messages"), "group").limit(top).collect()
        return tuple(Group(_plain(row[0]), row[1], row[2], _utc(row[3]), _utc(row[4])) for row in listed)

    # Gaps and duplicates

    def _gaps(self, log: DataFrame, sums: Iterable[RangeSum], spans: Iterable[Span]) -> Iterable[Gap]:
        """Yield the gaps, about AUDIT_GAPS_MAX in a range at most. A range with a row for each offset is skipped."""
        if self._source.selection.subjects:
            return  # the offsets in between belong to messages on other subjects
        from pyspark.sql import Window
        from pyspark.sql import functions as sql

        there = {(one.topic, one.partition, one.start): one.rows for one in sums}
        for span in spans:
            key = span.key
            info = self._chosen.streams[key.stream]
            step = self._range_rows
            for at in range(span.start // step * step, span.end, step):
                start, end = max(span.start, at), min(span.end, at + step)
                rows_there = there.get((key.stream, key.partition, at), 0)
                if rows_there == end - start:
                    continue
                if not rows_there:
                    yield Gap(key.stream, key.partition, start, end, may_lose(info))
                    continue
                here = _of(log, key, start, end).select("offset")
                before = sql.lag("offset", 1, start - 1).over(Window.orderBy("offset"))
                holes = here.withColumn("before", before).where("offset > before + 1").limit(limits.AUDIT_GAPS_MAX)
                found = [(row.before + 1, row.offset) for row in holes.orderBy("offset").collect()]
                last = here.agg(sql.max("offset")).collect()[0][0]
                behind = start if last is None else last + 1
                found += [(behind, end)] if behind < end else []
                yield from (Gap(key.stream, key.partition, *one, may_lose(info)) for one in found)

    def _lost(self, gaps: Iterable[Gap]) -> Iterable[Gap]:
        """Yield the gaps without their beginnings that were deleted."""
        for gap in gaps:
            if gap.is_expected:
                yield gap
                continue
            at = gap.start
            while at < gap.end and (deleted_end := self._deleted_end(gap.topic, gap.partition, at)) > at:
                at = deleted_end
            if at < gap.end:
                yield gap._replace(start=at)

    def _deleted_end(self, stream: str, partition: int, offset: int) -> int:
        """Return the end of the deleted messages that begin at an offset; the offset if its message was not deleted."""
        try:
            self._client.get(self._chosen.streams[stream], offset, partition=partition, timeout=self._source.timeout_s)
        except MessageNotFound as error:
            return int(error.details.get("deleted_end", offset))
        return offset

    def _are_deleted(self, key: Key, offsets: Iterable[int]) -> bool:
        """True if the messages at all of these offsets, which rise, were deleted."""
        reached = 0
        for offset in offsets:
            if offset >= reached and (reached := self._deleted_end(key.stream, key.partition, offset)) <= offset:
                return False
        return True

    def _repeated(self, rows: DataFrame, top: int) -> tuple[Repeated, ...]:
        from pyspark.sql import functions as sql

        named = rows.where("id IS NOT NULL").select("topic", "id", "partition", "offset")
        places = sql.slice(sql.sort_array(sql.collect_list(sql.struct("partition", "offset"))), 1, 10)
        found = named.groupBy("topic", "id").agg(sql.count("*").alias("messages"), places).where("messages > 1")
        listed = found.orderBy(sql.desc("messages"), "topic", "id").limit(top).collect()
        return tuple(
            Repeated(row[0], _text(row[1]), row[2], tuple((one[0], one[1]) for one in row[3])) for row in listed
        )

    # Comparison with an archive

    def _compare(self, rows: DataFrame, sums: Sequence[RangeSum], spans: Sequence[Span]) -> Iterable[Difference]:
        both = [one for one in spans if one.compared_start < one.compared_end]
        wanted = {one.key: (one.compared_start, one.compared_end) for one in both}
        if not wanted:
            return
        if any((one.start, one.end) != (one.compared_start, one.compared_end) for one in spans):
            sums = self._sums(rows.where(_within(wanted)))
        log = {one[:3]: one[3:] for one in sums}
        lake = {one[:3]: one[3:] for one in self._sums(self._rows(wanted, self._against))}
        for place in sorted(log.keys() | lake.keys()):
            if log.get(place) == lake.get(place):
                continue
            topic, partition, at = place
            start, end = wanted[Key(topic, partition)]
            yield self._difference(rows, Key(topic, partition), max(start, at), min(end, at + self._range_rows))

    def _difference(self, rows: DataFrame, key: Key, start: int, end: int) -> Difference:
        """Compare the rows of one range by offset; this reads the archive's rows again."""
        from pyspark.sql import functions as sql

        log = _of(rows, key, start, end).groupBy("offset").agg(sql.min("hash").alias("log"))
        several = sql.min("hash").alias("least"), sql.max("hash").alias("most"), sql.count("*").alias("copies")
        lake = self._rows({key: (start, end)}, self._against).groupBy("offset").agg(*several)
        changed = sql.expr("log != least OR log != most")
        found = (
            log.join(lake, "offset", "full_outer")
            .agg(
                sql.count_if(sql.col("copies").isNull()),
                sql.count_if(changed),
                sql.count_if(sql.col("copies") > 1),
                sql.count_if(sql.col("log").isNull()),
            )
            .collect()
        )
        missing, other, twice, only = found[0]
        is_mistake = bool(missing or other or twice)
        if not (is_mistake or may_lose(self._chosen.streams[key.stream])):
            left = lake.join(log, "offset", "left_anti").select("offset").orderBy("offset")
            is_mistake = not self._are_deleted(key, [row.offset for row in left.collect()])
        return Difference(key.stream, key.partition, start, end, missing, other, twice, only, is_mistake)


def _of(rows: DataFrame, key: Key, start: int, end: int) -> DataFrame:
    return rows.where(_within({key: (start, end)}))


def _within(wanted: Mapping[Key, tuple[int, int]]) -> Column:
    from pyspark.sql import functions as sql

    found = sql.lit(False)
    for key, (start, end) in wanted.items():
        of_partition = (sql.col("topic") == key.stream) & (sql.col("partition") == key.partition)
        found = found | (of_partition & (sql.col("offset") >= start) & (sql.col("offset") < end))
    return found


def may_lose(info: StreamInfo) -> bool:
    """True if the stream may remove messages from the middle of its log: compaction, time to live, rollups, acks."""
    config = info.config
    return bool(config.compact or config.allow_message_ttl or config.allow_rollup or config.is_consumed)


def _plain(found: Any) -> Any:
    return bytes(found) if isinstance(found, bytearray) else found


def _text(found: Any) -> str:
    return bytes(found).decode("utf-8", "backslashreplace")


def _utc(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)
