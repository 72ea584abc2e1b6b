"""What a server says in place of an ack, as a sentence, whatever it was sent as."""

from __future__ import annotations

import msgspec

_NOBODY = "NATS/1.0 503"


class _Error(msgspec.Struct, frozen=True):
    description: str
    code: int


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error


def refusal(said: str) -> str:
    """What an answer that is no ack says: the description of an error in JSON, or the answer itself."""
    before, brace, document = said.partition("{")
    if brace:
        try:
            error = msgspec.json.decode(brace + document, type=_Refusal).error
        except msgspec.DecodeError:
            pass  # cut short, or somebody else's
        else:
            return f"{before}{error.description} (code {error.code})"
    if said.startswith(_NOBODY):
        return f"nobody listens to the subject ({_NOBODY})"
    return " ".join(said.split())
