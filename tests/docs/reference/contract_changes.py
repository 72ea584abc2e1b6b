"""Generates docs/reference/contract-changes.md from the rules in `penstock.idl.compatibility`, and cases of tests."""

from __future__ import annotations

from penstock.idl.compatibility import RULES
from tests.protobuf_changes import PROTOBUF_CHANGES, ProtobufChange

_HEAD = """# Changes of contracts: what each breaks

`penstock idl check` ([how](../how-to/check-contracts.md)) names each change of a Frugal, Thrift or Protobuf file by \
a rule.
Ids of rules are stable.

- **backward**: new code fails with what old code wrote, such as stored messages.
- **forward**: old code fails with what new code writes.
- **source**: programs that use the generated code have to be edited; the wire stays the same.
- **note**: nothing fails, but both versions do not behave alike.

A change that no rule names, such as a comment or another order, is safe.
Types are compared as they are on the wire, through typedefs and includes: two names of one type are the same.

| rule | breaks | why | instead |
|---|---|---|---|
"""

_PROTOBUF = """
## Protobuf, and what Buf says

Two descriptor sets are compared by the same rules.
`buf breaking` has categories of rules, of which a project chooses one; the third column names those that fail, \
`all` being `FILE`, `PACKAGE`, `WIRE_JSON` and `WIRE`.

| change | here | Buf |
|---|---|---|
"""

_DIFFERENCES = """
Why both differ:

- Stored messages are decoded to typed columns, so a type that Protobuf would convert, such as `int64` for \
`int32`, breaks here: the column is another one, and old readers cut the number.
- Buf refuses a removed reservation, a `oneof` with another name and another default, of which \
no message is unreadable; here they pass and are listed.
  The reuse of a number is found among all versions that are compared, or that a stream has.
- JSON is no encoding of a stored Protobuf message here, so a name alone breaks programs only.
- A value that an enum loses is in stored messages still, also if its number is reserved.
- A removed message, service or method breaks what is stored, or is called, so it breaks more here than in Buf's `WIRE`.
"""


def contract_changes() -> str:
    """Return the text of docs/reference/contract-changes.md."""
    rows = (
        f"| `{each.id}` | {', '.join(each.impact.words) or 'note'} | {each.why} | {each.advice} |\n"
        for each in RULES.values()
    )
    return _HEAD + "".join(rows) + _PROTOBUF + "".join(map(_protobuf_row, PROTOBUF_CHANGES)) + _DIFFERENCES


def _protobuf_row(case: ProtobufChange) -> str:
    named = [each for each in case.found if each != "field-added"]
    rules = ", ".join(f"`{each}`" for each in named)
    impacts = [RULES[each].impact.words for each in named]
    breaks = " ".join(dict.fromkeys(word for words in impacts for word in words)) or "note"
    buf = f"{case.buf}: `{case.buf_rule}`" if case.buf_rule else case.buf
    return f"| {case.change} | {breaks}: {rules} | {buf} |\n"
