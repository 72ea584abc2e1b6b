"""Readable texts for a server's answers that are not acks."""

from __future__ import annotations

import msgspec

_NOBODY = "NATS/1.0 503"


class _Error(msgspec.Struct, frozen=True):
    description: str
    code: int


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error


def refusal(said: str) -> str:
    """Return the description of a JSON error, or the answer itself."""
    before, brace, document = said.partition("{")
    if brace:
        try:
            error = msgspec.json.decode(brace + document, type=_Refusal).error
        except msgspec.DecodeError:
            pass  # truncated, or another format
        else:
            return f"{before}{error.description} (code {error.code})"
    if said.startswith(_NOBODY):
        return f"no responders: the subject has no subscriber ({_NOBODY})"
    return " ".join(said.split())
