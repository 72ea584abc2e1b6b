"""The page on schemas: the error ack that it shows is the one that a publisher gets."""

from __future__ import annotations

import json
import re
from pathlib import Path

from penstock.base.config import SchemaCheck, StreamConfig
from penstock.base.ids import StreamId, TimestampUs
from penstock.ingest.admission import AdmissionRules, admit, marks_of
from penstock.ingest.value_check import ValueCheck
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.registry import SchemaVersion, StreamSchemas, Typed
from tests.groups import group_of

PAGE = (Path(__file__).parents[2] / "docs/how-to/schemas.md").read_text(encoding="utf-8")


def test_the_error_ack_of_the_page() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    (field,) = re.findall(r'`("shop": {"type": "string"})`', PAGE)
    (value,) = re.findall(r"publisher of `(.*?)`", PAGE)
    schema = Schema(SchemaKind.JSON_SCHEMA, f'{{"properties": {{{field}}}}}')
    version = SchemaVersion(Typed("sales.>"), 1, schema, schema.hash(), TimestampUs(0))
    check = ValueCheck(StreamSchemas("sales", StreamId(1), (version,)))
    group = group_of([(b"sales.bern", b"reply", None, value.encode())])
    rules = AdmissionRules.of(StreamConfig(name="sales", subject="sales.>", schema_check=SchemaCheck.REFUSE))
    admission = admit(group, rules, log_end=0, values=check, mistyped=marks_of(group, check))
    _, _, body = b"".join(admission.errors).partition(b"\r\n")
    assert json.loads(body) == json.loads(shown)
