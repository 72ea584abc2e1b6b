"""Schemas by which the blocking client's callers decode a stream: commands, queries, Spark and archives."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.client.blocking.client import Client
from penstock.client.read.decoding import SOURCE_UNKNOWN, source_of_letters
from penstock.client.values import StreamName

if TYPE_CHECKING:
    from penstock.schemas.registry import StreamSchemas


def schemas_to_decode(client: Client, stream: StreamName, timeout_s: float) -> StreamSchemas:
    """Return the schemas by which the values of a stream are decoded, of which it may have none. StreamNotFound."""
    found = client.schemas(stream, timeout=timeout_s)
    source = None if found.versions else source_of_letters(client.stream(found.stream, timeout=timeout_s))
    if source is not None:
        with contextlib.suppress(*SOURCE_UNKNOWN):
            return found.with_versions(client.schemas(source, timeout=timeout_s))
    return found
