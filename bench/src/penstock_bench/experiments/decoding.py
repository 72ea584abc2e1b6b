"""`penstock bench decode`: values of a stream as typed columns, beside decoding them one by one.

Rules: One broker; a stream of Frugal's frames and one of JSON, each with its schema, hold the same values: flat structs
of 4 i64, 2 doubles, 3 strings of 8 B and a bool. Each turn reads one whole stream into one result of typed values, in
this process: reading is part of all of them. One by one, a frame is skipped, and its struct is decoded by the C code of
Apache thrift, as Frugal's own subscriber does, into objects; Polars decodes JSON from the column `value`, with the
types given. Of each turn a sum over the values is compared with what was sent.

| system  | does                                                         |
|---------|--------------------------------------------------------------|
| columns | `to_table(decode="schema")`, frames                          |
| thrift  | `read`, then Apache thrift for each frame                    |
| json    | `to_table(decode="schema")`, JSON                            |
| polars  | `to_polars`, then `str.json_decode`                          |
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from penstock.base.errors import OperationalError
from penstock.base.limits import BENCH_STALL_S, GIB
from penstock.broker.supervision.child import launched
from penstock.client.blocking import client as blocking
from penstock_bench import extras
from penstock_bench.experiments.experiment import Experiment, Row, Turn

ROUNDS = 5
_COLUMNS, _THRIFT, _JSON, _POLARS = "columns", "thrift", "json", "polars"
_ROWS = 10_000  # of one append; so many values differ
_SECONDS_A_MESSAGE = 4e-6  # for the time estimate
_TIMEOUT_S = 2 * BENCH_STALL_S
_NAMES = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
_TYPES = ("i64",) * 4 + ("double",) * 2 + ("string",) * 3 + ("bool",)
_FIELDS = tuple(zip(range(1, 11), _TYPES, _NAMES, strict=True))
_CONTRACT = f"struct Flat {{ {' '.join(f'{number}: {kind} {name}' for number, kind, name in _FIELDS)} }}"
_JSON_TYPES = {"i64": "integer", "double": "number", "string": "string", "bool": "boolean"}


def experiment(messages: int = 1_000_000, rounds: int | None = None) -> Experiment:
    """Return the experiment, for streams of so many messages."""
    extras.required(extras.THRIFT, extras.POLARS)
    titles = {
        _COLUMNS: "Frugal's messages as typed columns",
        _THRIFT: "one by one, by Apache thrift",
        _JSON: "JSON as typed columns by a schema",
        _POLARS: "by Polars' str.json_decode",
    }
    rates = [Row(name, title, "msg/s", "rate", name, at_least=True) for name, title in titles.items()]
    return Experiment(
        systems=tuple(titles),
        begin=partial(_begin, messages=messages),
        rows=(
            *rates,
            Row("columns-thrift", "typed columns by one by one", "×", "rate", _COLUMNS, _THRIFT, 5, at_least=True),
            Row("json-polars", "JSON by Polars", "×", "rate", _JSON, _POLARS, 1, at_least=True),
        ),
        rounds=rounds or ROUNDS,
        turn_seconds=messages * _SECONDS_A_MESSAGE,
        bytes_needed=GIB + 600 * messages,
        titles=titles,
    )


@contextmanager
def _begin(folder: Path, *, messages: int) -> Iterator[Turn]:
    """Start the broker, and append to both streams."""
    from penstock.schemas.decoding import ValueFraming
    from penstock.schemas.kinds import Schema, SchemaKind

    broker = launched(folder / "data", "--listen", "127.0.0.1:0", "--nats-port", "0", "--log-level", "error")
    with broker as running, blocking.connect(running.wait_until_ready().client, timeout=_TIMEOUT_S) as client:
        values = [_value(number) for number in range(_ROWS)]
        flat = _flat()
        contract = Schema(SchemaKind.FRUGAL, _CONTRACT, type_name="Flat")
        fields = {name: {"type": _JSON_TYPES[kind]} for name, kind in zip(_NAMES, _TYPES, strict=True)}
        schema = Schema(SchemaKind.JSON_SCHEMA, json.dumps({"properties": fields}))
        _append(client, "frames", [_frame(flat, value) for value in values], messages)
        _append(
            client, "json", [json.dumps(dict(zip(_NAMES, value, strict=True))).encode() for value in values], messages
        )
        client.register_schema("frames", contract, framing=ValueFraming.FRUGAL, message="Made")
        client.register_schema("json", schema)
        expected = sum(values[number % _ROWS][0] for number in range(messages))
        read: dict[str, Callable[[], int]] = {
            _COLUMNS: lambda: _sum(client.to_table("frames", decode="schema", timeout=_TIMEOUT_S)),
            _THRIFT: lambda: _one_by_one(client, flat),
            _JSON: lambda: _sum(client.to_table("json", decode="schema", timeout=_TIMEOUT_S)),
            _POLARS: lambda: _by_polars(client),
        }

        def turn(name: str, _: int) -> dict[str, float]:
            begin_s = time.perf_counter()
            total = read[name]()
            seconds = time.perf_counter() - begin_s
            if total != expected:
                raise OperationalError(f"the values add up to {total}, and those sent to {expected}")
            return {"rate": messages / seconds}

        yield turn


def _value(number: int) -> tuple[Any, ...]:
    whole = (number, number * 1_000_003, -number, number << 40)
    texts = (f"{number:08}", f"{number * 7:08}"[:8], "constant")
    return (*whole, number * 0.5, number / 3, *texts, number % 2 == 0)


def _flat() -> type:
    """Return a class as Thrift's compiler writes it, which the C code fills."""
    thrift = extras.imported("thrift.Thrift")
    kinds = {
        "i64": thrift.TType.I64,
        "double": thrift.TType.DOUBLE,
        "string": thrift.TType.STRING,
        "bool": thrift.TType.BOOL,
    }
    spec = [(n, kinds[t], name, "UTF8" if t == "string" else None, None) for n, t, name in _FIELDS]
    return type("Flat", (), {"__slots__": _NAMES, "thrift_spec": (None, *spec)})


def _frame(flat: type, value: tuple[Any, ...]) -> bytes:
    """Return a frame of `frugal-v0`, as publishers of Frugal send it."""
    one = flat()
    for name, part in zip(_NAMES, value, strict=True):
        setattr(one, name, part)
    encode = extras.imported("thrift.protocol.fastbinary").encode_binary
    data: bytes = encode(one, [flat, flat.thrift_spec])  # type: ignore[attr-defined]
    named = (("_cid", f"{value[0]:032}"), ("_opid", str(value[0] + 1)), ("_timeout", "5000"))
    headers = b"".join(struct.pack(f">I{len(k)}sI{len(v)}s", len(k), k.encode(), len(v), v.encode()) for k, v in named)
    message = struct.pack(">iI4si", -0x7FFEFFFF, 4, b"Made", 0) + data
    return struct.pack(">IBI", 5 + len(headers) + len(message), 0, len(headers)) + headers + message


def _append(client: blocking.Client, stream: str, values: list[bytes], messages: int) -> None:
    import pyarrow as pa

    client.create_stream(stream, stream, durability="os", timeout=_TIMEOUT_S)
    table = pa.table({"value": pa.array(values, pa.binary())})
    for sent in range(0, messages, _ROWS):
        client.append(stream, table.slice(0, min(_ROWS, messages - sent)), timeout=_TIMEOUT_S)


def _sum(table: Any) -> int:
    import pyarrow.compute as pc

    total: int = pc.sum(table.column("a")).as_py()
    return total


def _one_by_one(client: blocking.Client, flat: type) -> int:
    """Return the sum, after all values are objects."""
    protocol = extras.imported("thrift.protocol.TBinaryProtocol").TBinaryProtocolAccelerated
    memory = extras.imported("thrift.transport.TTransport").TMemoryBuffer
    spec = [flat, flat.thrift_spec]  # type: ignore[attr-defined]
    found: list[Any] = []
    for batch in client.read("frames", columns=["value"], timeout=_TIMEOUT_S):
        for value in batch.column("value").to_pylist():
            transport = memory(value[9 + int.from_bytes(value[5:9], "big") :])
            reading = protocol(transport)
            reading.readMessageBegin()
            one = flat()
            reading._fast_decode(one, reading, spec)  # noqa: SLF001 (as generated code does)
            found.append(one)
    return sum(one.a for one in found)


def _by_polars(client: blocking.Client) -> int:
    pl = extras.imported("polars")
    kinds = {"i64": pl.Int64, "double": pl.Float64, "string": pl.String, "bool": pl.Boolean}
    dtype = pl.Struct({name: kinds[kind] for name, kind in zip(_NAMES, _TYPES, strict=True)})
    frame = client.to_polars("json", columns=["value"], timeout=_TIMEOUT_S)
    decoded = frame["value"].cast(pl.String).str.json_decode(dtype).struct.unnest()
    return int(decoded["a"].sum())
