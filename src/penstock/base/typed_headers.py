"""NATS headers that tell how a message's value is written, Thrift's media types, and subjects of dead letters.

Rules: names match exactly. Parameters of a media type do not count, nor does its case.
"""

from __future__ import annotations

OPERATION = "Frugal-Operation"
"""The operation of a scope: the payload is the bare value (native framing of `penstock.frugal`)."""
CONTENT_TYPE = "Content-Type"
SCHEMA = "Penstock-Schema"
"""The hash of the schema by which the value was written: 64 hex digits."""

DEAD_PREFIX = "penstock.dead."
"""In front of a dead letter's stream, a dot and the subject on which the message was published."""
DEAD_SUFFIX = "-dead"
"""Behind a stream's name: the stream of its dead letters."""
DEAD_SUBJECT = "Penstock-Dead-Subject"
"""The subject on which a dead letter was published."""
DEAD_TOO_LONG = "too-long"
"""In the place of a subject that is too long with the prefix."""
DEAD_UNFIT = "unfit"
"""In the place of a subject whose schema the value does not fit."""


def thrift_media_type(protocol: str) -> str:
    """Return the media type of one of Thrift's protocols: "binary", "compact" or "json"."""
    return f"application/vnd.apache.thrift.{protocol}"


def media_type(content_type: str) -> str:
    """Return the media type of a `Content-Type`, in lower case and without parameters."""
    return content_type.partition(";")[0].strip().lower()
