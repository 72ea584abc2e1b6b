"""The options of `format("penstock")`, parsed once into frozen types; all mistakes are reported together.

Rules: Spark passes values as text, and names in any case. Options with Kafka's names mean the same as in Kafka. An
unknown option is refused, with a suggestion. Secrets are never options: Spark shows options in plans and in its log.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.base.subjects import stream_name_mistake, subject_mistake
from penstock.base.units import parse_duration_us
from penstock.client.link.addresses import DEFAULT_SERVER, SERVER_VARIABLE, parse_servers, with_tls
from penstock.client.link.credentials import FILE_VARIABLE, TOKEN_VARIABLE
from penstock.client.link.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, TlsOptions, settled
from penstock.lake.reading.columns import COLUMNS, default_columns, known_column
from penstock.lake.reading.selection import Selection, listed, split_globs
from penstock.spark.brokers import Servers
from penstock.spark.options.positions import (
    Boundary,
    Earliest,
    Latest,
    Moment,
    Offsets,
    Positions,
    schema_versions,
)
from penstock.spark.options.where import EVERYWHERE, Bounds, bounds_of, moment_of

T = TypeVar("T")


class Option(NamedTuple):
    """One option, as in the reference: its name, its default as text, and its meaning."""

    name: str
    default: str
    meaning: str


_TLS_OPTIONS = (
    Option(
        "penstock.tls.ca",
        f"${CA_VARIABLE}",
        "use TLS, and verify brokers against these certificate authorities: a PEM file on the driver and every "
        "executor; `tls://` before HOST:PORT uses those that the machines trust",
    ),
    Option("penstock.tls.cert", f"${CERT_VARIABLE}", "client certificate (PEM), on the driver and every executor, too"),
    Option("penstock.tls.key", f"${KEY_VARIABLE}", "private key (PEM) of that certificate, there too"),
    Option(
        "penstock.credentials",
        f"${FILE_VARIABLE}",
        "file with the credentials: a token, an nkey seed, or USER:PASSWORD; there too",
    ),
)

SOURCE_OPTIONS = (
    Option("servers", f"${SERVER_VARIABLE}, or {DEFAULT_SERVER}", "brokers, `HOST:PORT` separated by commas"),
    *_TLS_OPTIONS,
    Option("stream", "", "names of streams, separated by commas; `*` and `?` are wildcards, as in file names"),
    Option("subscribe", "", "Kafka's name of `stream`, without wildcards"),
    Option("subscribePattern", "", "regular expression that matches the whole names of streams"),
    Option("assign", "", 'JSON of the partitions of each stream, such as `{"orders": [0, 1]}`'),
    Option("subject", "", "only messages on this subject, `*` and `>` allowed; without a stream: in all that store it"),
    Option("subjects", "", "several subjects, separated by commas"),
    Option(
        "where", "",
        'for `spark.read`: JSON of conditions on columns, such as `{"partition": [0, 1], "offset": [100, 200], '
        '"subject": "orders.eu.>", "timestamp": ["2026-11-20T10:00:00Z", null]}`; all must hold, and a range excludes '
        "its end",
    ),
    Option("columns", "", "columns to fetch, separated by commas; a narrow `.schema()` does the same"),
    Option("includeHeaders", "false", "true adds the column `headers`"),
    Option(
        "decode", "",
        "`schema`: typed columns of the values, by the registered schemas of their subjects, and `decode_error`",
    ),
    Option(
        "schemaVersions", "newest; in a query that goes on those that it began with, if `checkpointLocation` is given",
        'with `decode`: `newest`, or JSON such as `{"orders": {"orders.*.placed": 1}}`: whose columns there are; the '
        "JSON in a checkpoint or in the progress of a query is accepted, too",
    ),
    Option(
        "checkpointLocation", "",
        "with `decode`, for a streaming query: the folder of its checkpoint, on a disk of the driver, from which the "
        "versions of the schemas are read when the query goes on",
    ),
    Option(
        "startingOffsets", "earliest; for a streaming query latest",
        '`earliest`, `latest`, or JSON such as `{"orders": {"0": 23, "1": -2}}`, where -2 is earliest and -1 latest; '
        "other partitions begin at the default. The JSON in a checkpoint or in the progress of "
        "a query is accepted, too",
    ),
    Option("endingOffsets", "latest", "the same, for the end of a batch read"),
    Option(
        "startingTimestamp", "",
        "milliseconds since 1970 UTC, or a time such as `2026-11-20T10:00:00Z`: begin with the first message stored "
        "then or later",
    ),
    Option("endingTimestamp", "", "the same, for the end: before the first such message"),
    Option("startingOffsetsByTimestamp", "", 'JSON of such milliseconds, such as `{"orders": {"0": 1700000000000}}`'),
    Option("endingOffsetsByTimestamp", "", "the same, for the end of a batch read"),
    Option("startingOffsetsByTimestampStrategy", "error", "if all messages are older: `error`, or `latest`"),
    Option("failOnDataLoss", "true", "fail if messages to be read were deleted from the log; false: skip them"),
    Option("archive", "", "folder of an archive (`penstock archive`): its messages are read from there"),
    Option("maxOffsetsPerTrigger", "", "for a streaming query: the most messages in a batch, over all partitions"),
    Option("minOffsetsPerTrigger", "", "for a streaming query: the least messages in a batch"),
    Option("maxTriggerDelay", "15m", "the longest wait for `minOffsetsPerTrigger`"),
    Option("minPartitions", "", "the least number of tasks, if there are as many messages"),
    Option("maxRecordsPerPartition", "", "the most messages in a task"),
    Option(
        "group", "`spark-` and an id that the checkpoint keeps",
        "for a streaming query: the group to which it commits its progress, one for each query; empty: none",
    ),
    Option("timeout", "60s", "how long one answer of the brokers is waited for, failovers included"),
)  # fmt: skip
"""The options of a reader, in the order of the reference."""

SINK_OPTIONS = (
    Option("servers", f"${SERVER_VARIABLE}, or {DEFAULT_SERVER}", "brokers, `HOST:PORT` separated by commas"),
    *_TLS_OPTIONS,
    Option("stream", "", "stream to append to; rows with a `topic` go to the stream of that name"),
    Option("topic", "", "Kafka's name of `stream`"),
    Option("txnAppId", "", "for a batch write: name of the application; each `txnVersion` of it is written once"),
    Option(
        "txnVersion", "",
        "a number that increases with each write of that application, such as the batch id of `foreachBatch`",
    ),
    Option(
        "invalidHeaders", "fail",
        "`fail`, or `drop`, for headers that NATS cannot carry, because of their name or because of line ends or zero "
        "bytes in their value; a null value is written as an empty one",
    ),
    Option("republish", "", "prefix: written messages are published on NATS, too, on the prefix and their subject"),
    Option("timeout", "60s", "how long one answer of the brokers is waited for, failovers included"),
)  # fmt: skip
"""The options of a writer, in the order of the reference."""

_IGNORED = frozenset(
    {
        *("path", "queryname", "checkpointlocation", "serialization.format", "mergeschema", "__partition_columns"),
        *("provider", "owner", "location", "comment", "external", "is_managed_location", "collation", "header"),
    }
)
"""Options that Spark adds itself, such as the properties of a table that was created with SQL. They are ignored."""
_SECRET = re.compile(r"token|password|secret|nkey|sasl|user")
_OF_TABLE = "option."
"""Prefix of such a table's options among its properties."""


LOSS_ADVICE = "Set failOnDataLoss to false to go on all the same"


@dataclass(frozen=True)
class Decode:
    """Decoding of values to typed columns. `versions`: pinned ones; None: not given; empty: the newest."""

    versions: Mapping[str, Mapping[str, int]] | None = None
    checkpoint: str = ""


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options of a reader."""

    servers: tuple[str, ...]
    selection: Selection
    columns: tuple[str, ...]
    start: Boundary | None  # None: earliest, or latest for a streaming query
    end: Boundary
    fail_on_data_loss: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_s: float
    partitions_min: int | None
    records_max: int | None
    group: str | None  # None: a group with a random id for each query; empty: no group
    timeout_s: float
    archive: str = ""
    where: Bounds = EVERYWHERE
    decode: Decode | None = None
    takes_all_columns: bool = True  # False: the option `columns` names them


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse a reader's options. Raise ConfigError with all mistakes."""
    reader = _Reader(options, SOURCE_OPTIONS)
    where = reader.get("where", bounds_of, default=EVERYWHERE)
    selection = _selection(reader, where.subjects)
    decode = _decode(reader)
    columns = reader.get("columns", _columns if decode is None else _any_columns)
    headers = reader.get("includeHeaders", _flag, default=False)
    parsed = SourceOptions(
        servers=servers_of(reader),
        selection=selection,
        columns=columns or default_columns(headers=headers),
        start=_place(reader, "starting", selection),
        end=_place(reader, "ending", selection) or Latest(),
        fail_on_data_loss=reader.get("failOnDataLoss", _flag, default=True),
        max_offsets=reader.get("maxOffsetsPerTrigger", _count),
        min_offsets=reader.get("minOffsetsPerTrigger", _count),
        max_delay_s=reader.get("maxTriggerDelay", seconds, default=900.0),
        partitions_min=reader.get("minPartitions", _count),
        records_max=reader.get("maxRecordsPerPartition", _count),
        group=reader.text("group") if reader.has("group") else None,
        timeout_s=reader.get("timeout", seconds, default=60.0),
        archive=reader.text("archive"),
        where=where,
        decode=decode,
        takes_all_columns=not columns,
    )
    if parsed.max_offsets and parsed.min_offsets and parsed.min_offsets > parsed.max_offsets:
        reader.mistakes.append("minOffsetsPerTrigger: it is more than maxOffsetsPerTrigger")
    reader.check()
    return parsed


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options of a writer. If `stream` is empty, each row names its stream in `topic`."""

    servers: tuple[str, ...]
    stream: str
    republish: str
    txn_app_id: str
    txn_version: int
    timeout_s: float
    drop_invalid_headers: bool = False


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse a writer's options. Raise ConfigError with all mistakes."""
    reader = _Reader(options, SINK_OPTIONS)
    stream = reader.text("stream") or reader.text("topic")
    if stream and (mistake := stream_name_mistake(stream)) is not None:
        reader.mistakes.append(f"stream: {mistake}")
    republish = reader.text("republish")
    if republish and (mistake := subject_mistake(republish)) is not None:
        reader.mistakes.append(f"republish: {mistake}")
    parsed = SinkOptions(
        servers=servers_of(reader),
        stream=stream,
        republish=republish,
        txn_app_id=reader.text("txnAppId"),
        txn_version=reader.get("txnVersion", _version, default=-1),
        timeout_s=reader.get("timeout", seconds, default=60.0),
        drop_invalid_headers=reader.get("invalidHeaders", _is_drop, default=False),
    )
    if bool(parsed.txn_app_id) != bool(reader.text("txnVersion")):
        reader.mistakes.append("txnAppId, txnVersion: one is given without the other")
    reader.check()
    return parsed


class _Reader:
    """Parses options one by one, and collects all mistakes."""

    def __init__(self, options: Mapping[str, str], known: tuple[Option, ...]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        plain = {name: value for name, value in given.items() if not name.startswith(_OF_TABLE)}
        self._options = {name.removeprefix(_OF_TABLE): value for name, value in given.items()} | plain
        self.mistakes = []
        self.given_path = bool(self._options.get("path"))
        names = {one.name.lower(): one.name for one in known}
        for name in sorted(self._options.keys() - names.keys() - _IGNORED):
            near = ["servers"] if name.startswith("kafka.") else difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            if _SECRET.search(name):
                hint = f": Spark shows options; use a file with penstock.credentials, or {TOKEN_VARIABLE} for a token"
            self.mistakes.append(f"{name}: there is no such option{hint}")

    mistakes: list[str]
    given_path: bool

    def has(self, name: str) -> bool:
        return name.lower() in self._options

    def text(self, name: str) -> str:
        return str(self._options.get(name.lower(), "")).strip()

    def get(self, name: str, parse: Callable[[str], T], default: Any = None) -> Any:
        text = self.text(name)
        if not text:
            return default
        try:
            return parse(text)
        except (ValueError, TypeError) as error:
            self.mistakes.append(f"{name}: {error}")
            return default

    def check(self) -> None:
        if self.mistakes:
            raise ConfigError(self.mistakes)


def servers_of(reader: _Reader) -> tuple[str, ...]:
    """Return the brokers' addresses: from the option, else the driver's environment, else this machine's."""
    text = reader.text("servers") or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
    given = {name: reader.text(f"penstock.tls.{name}") for name in ("ca", "cert", "key")}
    tls = TlsOptions(**{name: file for name, file in given.items() if file}) if any(given.values()) else None
    try:
        # The addresses include the TLS files of the driver's environment, so that tasks use them, too.
        addresses, options = settled(parse_servers(text), tls, os.environ)
        files = {} if options is None else {name: str(file) for name, file in asdict(options).items() if file}
        reached = addresses if options is None else tuple(with_tls(one, files) for one in addresses)
        return Servers.of(reached, reader.text("penstock.credentials") or os.environ.get(FILE_VARIABLE, ""))
    except ValueError as error:
        reader.mistakes.append(f"servers: {error}")
        return ()


# Selection of streams


def _selection(reader: _Reader, of_where: tuple[str, ...]) -> Selection:
    given = [name for name in ("stream", "subscribe", "subscribePattern", "assign") if reader.text(name)]
    subjects = tuple(listed(reader.text("subject")) + listed(reader.text("subjects")))
    if subjects and of_where:
        reader.mistakes.append("subject: where names subjects, too; give one of the two")
    subjects = of_where or subjects
    for subject in subjects:
        if (mistake := subject_mistake(subject, wildcards=True)) is not None:
            reader.mistakes.append(f"subject: {mistake}")
    if len(given) > 1:
        reader.mistakes.append(f"{given[1]}: {given[0]} is given, too; one of them says which streams are read")
    elif not given and not subjects:
        hint = " as an option, load takes none" if reader.given_path else ""
        reader.mistakes.append(f"stream: it is missing; give a stream's name{hint}, or the subject of messages")
    if not given:
        return Selection(subjects=subjects)
    assigned = reader.get("assign", _assigned)
    pattern = reader.get("subscribePattern", _pattern)
    plain, globs = split_globs(listed(reader.text("stream")))
    names = plain + listed(reader.text("subscribe")) + list(assigned or ())
    for name in names:
        if (mistake := stream_name_mistake(name)) is not None:
            reader.mistakes.append(f"{given[0]}: {mistake}")
    return Selection(tuple(dict.fromkeys(names)), globs, pattern, assigned, subjects)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    found = _json(text)
    if not all(isinstance(one, list) and all(type(number) is int for number in one) for one in found.values()):
        raise ValueError(f'{text!r} is not JSON of a list of partitions for each stream, as {{"orders": [0, 1]}}')
    return {name: tuple(sorted(set(numbers))) for name, numbers in found.items()}


def _columns(text: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for name in listed(text):
        if (known := known_column(name)) is None:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
        found[known] = None
    return tuple(found)


def _any_columns(text: str) -> tuple[str, ...]:
    """Return the names of columns, of which those of the schemas are not known yet."""
    return tuple(dict.fromkeys(known_column(name) or name for name in listed(text)))


# Typed columns


def _decode(reader: _Reader) -> Decode | None:
    how = reader.get("decode", _decoding)
    versions = reader.get("schemaVersions", _versions)
    if how is None:
        if versions is not None:
            reader.mistakes.append("schemaVersions: nothing is decoded by them; give decode, too")
        return None
    return Decode(versions, reader.text("checkpointLocation"))


def _decoding(text: str) -> str:
    if text.lower() != "schema":
        raise ValueError(f"it is {text!r}; there is schema; of JSON without a schema, use from_json")
    return "schema"


def _versions(text: str) -> dict[str, dict[str, int]]:
    return {} if text.lower() == "newest" else schema_versions(_json(text))


# Start and end


def _place(reader: _Reader, which: str, selection: Selection) -> Boundary | None:
    is_start = which == "starting"
    names = [f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp"]
    given = [name for name in names if reader.text(name)]
    if len(given) > 1:
        reader.mistakes.append(f"{given[1]}: {given[0]} is given, too; one of them says where reading is {which}")
    latest_if_none = reader.get("startingOffsetsByTimestampStrategy", _strategy, default=False) or not is_start

    def moments(text: str) -> Boundary:
        return Moment(None, _numbers(text), latest_if_none)

    def moment(text: str) -> Boundary:
        return Moment(_milliseconds(text), {}, latest_if_none)

    parsers: tuple[Callable[[str], Boundary], ...] = (_offsets, moment, moments)
    found = [reader.get(name, parse) for name, parse in zip(names, parsers, strict=True)]
    place = next((one for one in found if one is not None), None)
    if is_start and isinstance(place, Offsets) and selection.assigned is not None:
        for stream in place.offsets.keys() - selection.assigned.keys():
            reader.mistakes.append(f"startingOffsets: stream {stream!r} is not among those of assign")
    return place


def _strategy(text: str) -> bool:
    if text.lower() not in ("error", "latest"):
        raise ValueError(f"it is {text!r}; there are error and latest")
    return text.lower() == "latest"


def _offsets(text: str) -> Boundary:
    if text.lower() == "earliest":
        return Earliest()
    if text.lower() == "latest":
        return Latest()
    if (noted := _noted(text)) is not None:
        each: dict[str, dict[int, int]] = {}
        for key, place in noted.positions.items():
            each.setdefault(key.stream, {})[key.partition] = place.offset
        return Offsets(each, noted)
    found = _numbers(text)
    for stream, numbers in found.items():
        for number, offset in numbers.items():
            if offset < -2:
                raise ValueError(f"the offset {offset} of {stream}, partition {number}, is negative")
    return Offsets(found)


def _noted(text: str) -> Positions | None:
    """Parse the JSON of a checkpoint or of a query's progress; None if it has another form. Raise ValueError."""
    found = _json(text)
    if not found or not all(isinstance(one, dict) and {"id", "offsets"} <= one.keys() for one in found.values()):
        return None
    try:
        return Positions.of_json(found)
    except ConfigError:
        raise ValueError(f"{text!r} is not what a checkpoint of this source holds") from None


def _numbers(text: str) -> dict[str, dict[int, int]]:
    example = '{"orders": {"0": 23}}'
    found = _json(text)
    out: dict[str, dict[int, int]] = {}
    for stream, numbers in found.items():
        if not isinstance(numbers, dict):
            raise ValueError(f"{text!r} is not JSON as {example}")
        for partition, number in numbers.items():
            if not (partition.isascii() and partition.isdigit() and type(number) is int):
                raise ValueError(f"{partition!r}: {number!r} of {stream} is not a partition and a number, as {example}")
            out.setdefault(stream, {})[int(partition)] = number
    return out


def _milliseconds(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else int(moment_of(text).timestamp() * 1_000)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{text!r} is no JSON object")
    return found


# Numbers


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"it is {text!r}; there are true and false")
    return text.lower() == "true"


def _is_drop(text: str) -> bool:
    if text.lower() not in ("fail", "drop"):
        raise ValueError(f"it is {text!r}; there are fail and drop")
    return text.lower() == "drop"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= limits.OFFSET_MAX):
        raise ValueError(f"it is {text!r}; give a whole number from 1 on")
    return int(text)


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise ValueError(f"it is {text!r}; give a whole number from 0 on")
    return int(text)


def seconds(text: str) -> float:
    """Parse a duration with a unit, such as `500ms` or `15m`, as seconds. Raise ValueError."""
    found = parse_duration_us(text) / 1e6
    if found <= 0:
        raise ValueError(f"it is {text!r}; give a time longer than nothing, as 500ms, 30s or 15m")
    return found
