"""Generates docs/reference/errors.md from the table in `penstock.client.link.error_codes`."""

from __future__ import annotations

from penstock.base.errors import RemoteError
from penstock.client.errors import specific
from penstock.client.link.error_codes import ERROR_CODES

_HEAD = """# Error codes: what each means, and whether to retry

A broker refuses a request with a code, a message for people, and numbers in `details`.
Codes are stable: a program may decide by them (`error.code` of every `penstock.RemoteError`).
The Python client has a class for those that programs ask for most, such as `penstock.StorageFailed`.
It raises any other code, also one of a newer broker that it does not know, as a plain `RemoteError`.

- **Stored?** says if an append, or another change, that failed with the code was done.
  "Perhaps" means: check before you retry, or use a [producer](../how-to/append-once.md).
- **The client** says what the client does by itself before it raises the error.
- **Again?** says if a retry makes sense.

After a "perhaps" the client never repeats a `client.append` without a producer: it raises the code.
If the connection broke, it raises `OutcomeUnknown`, which has no code and means the same.
The rows may then be stored after the error was raised, and after rows that were appended later.

| code | Python | meaning | stored? | the client | again? |
|---|---|---|---|---|---|
"""


def errors_reference() -> str:
    """Return the text of docs/reference/errors.md."""
    rows = []
    for code, told in ERROR_CODES.items():
        kind = type(specific(RemoteError(code, "")))
        name = "" if kind is RemoteError else f"`{kind.__name__}`"
        cells = (f"`{code}`", name, told.meaning, told.stored.value, told.handling.value, told.advice)
        rows.append(f"| {' | '.join(cells)} |\n")
    return _HEAD + "".join(rows)
