"""Generates docs/reference/contract-changes.md from the rules in `penstock.idl.compatibility`."""

from __future__ import annotations

from penstock.idl.compatibility import RULES

_HEAD = """# Changes of contracts: what each breaks

`penstock idl check` ([how](../how-to/check-contracts.md)) names each change of a Frugal or Thrift file by a rule.
Ids of rules are stable.

- **backward**: new code fails with what old code wrote, such as stored messages.
- **forward**: old code fails with what new code writes.
- **source**: programs that use the generated code have to be edited; the wire stays the same.
- **note**: nothing fails, but both versions do not behave alike.

A change that no rule names is safe.
Types are compared as they are on the wire, through typedefs and includes: two names of one type are the same.

| rule | breaks | why | instead |
|---|---|---|---|
"""


def contract_changes() -> str:
    """Return the text of docs/reference/contract-changes.md."""
    rows = (
        f"| `{each.id}` | {', '.join(each.impact.words) or 'note'} | {each.why} | {each.advice} |\n"
        for each in RULES.values()
    )
    return _HEAD + "".join(rows)
