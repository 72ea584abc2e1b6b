"""Schemas of streams as JSON: for tasks on other machines, and for archives, which keep those that they began with.

    {"version": 1, "texts": [{"kind": "frugal", "text": "struct …", "closure": [["base.frugal", "…"]]}],
     "streams": [{"stream": "orders", "id": 7, "versions": [
         {"subject": "orders.*.placed", "number": 1, "text": 0, "type": "Order", "message": "", "framing": "bare",
          "protocol": "binary", "hash": "5f0c…", "registered_us": 1700000000000000, "by": "", "is_forced": false}]}]}

Rules: a text is there once, since twenty operations of one contract share it. Equal schemas give equal JSON. JSON that
was not made here is refused, and so is a version whose hash is not that of its schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.base.ids import StreamId, TimestampUs
from penstock.schemas.decoding import ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.plans import SchemaError
from penstock.schemas.registry import SchemaVersion, StreamSchemas, Typed
from penstock.schemas.thrift import ThriftProtocol

FORMAT = 1
JSON_CHARS_MAX = 64 << 20


def schemas_to_json(streams: Iterable[StreamSchemas]) -> str:
    """Return schemas as JSON."""
    texts: dict[tuple[SchemaKind, str, tuple[tuple[str, str], ...]], int] = {}
    found = []
    for one in streams:
        versions = []
        for each in one.versions:
            schema, typed = each.schema, each.typed
            place = texts.setdefault((schema.kind, schema.text, schema.closure), len(texts))
            versions.append(
                {
                    "subject": typed.subject,
                    "number": each.number,
                    "text": place,
                    "type": schema.type_name,
                    "message": typed.message,
                    "framing": typed.framing.value,
                    "protocol": typed.protocol.value,
                    "hash": each.hash,
                    "registered_us": int(each.registered_us),
                    "by": each.by,
                    "is_forced": each.is_forced,
                }
            )
        found.append({"stream": one.stream, "id": int(one.stream_id), "versions": versions})
    kept = [{"kind": kind.value, "text": text, "closure": closure} for kind, text, closure in texts]
    return json.dumps({"version": FORMAT, "texts": kept, "streams": found}, separators=(",", ":"))


def schemas_of_json(text: str) -> tuple[StreamSchemas, ...]:
    """Parse the result of `schemas_to_json`. SchemaError: it is none, or is of a newer version."""
    if len(text) > JSON_CHARS_MAX:
        raise SchemaError(f"the schemas have {len(text):,} characters; {JSON_CHARS_MAX:,} at most")
    try:
        found = json.loads(text)
        if found["version"] != FORMAT:
            raise ValueError(f"its version is {found['version']!r}, and {FORMAT} is known")
        texts = found["texts"]
        return tuple(
            StreamSchemas(
                _text(one["stream"]),
                StreamId(_number(one["id"])),
                tuple(_version(each, texts) for each in one["versions"]),
            )
            for one in found["streams"]
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise SchemaError(f"it is no JSON of schemas: {type(error).__name__}: {error}") from error


def _version(found: Mapping[str, Any], texts: Sequence[Mapping[str, Any]]) -> SchemaVersion:
    kept = texts[_number(found["text"])]
    closure = tuple((_text(name), _text(included)) for name, included in kept["closure"])
    schema = Schema(SchemaKind(kept["kind"]), _text(kept["text"]), closure, _text(found["type"]))
    if schema.hash() != found["hash"]:
        raise ValueError(f"the hash of version {found['number']!r} of {found['subject']!r} is not that of its schema")
    framing, protocol = ValueFraming(found["framing"]), ThriftProtocol(found["protocol"])
    return SchemaVersion(
        typed=Typed(_text(found["subject"]), _text(found["message"]), framing, protocol),
        number=_number(found["number"]),
        schema=schema,
        hash=found["hash"],
        registered_us=TimestampUs(_number(found["registered_us"])),
        by=_text(found["by"]),
        is_forced=bool(found["is_forced"]),
    )


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{found!r} is no text")
    found.encode()  # a lone surrogate is no text either: it cannot be sent
    return found


def _number(found: Any) -> int:
    if type(found) is not int or found < 0:
        raise TypeError(f"{found!r} is no number from 0 on")
    return found
