"""Dead letters of consumers: the broker that leads their stream has the one that leads the other stream store them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.messages.fields import OffsetField, Request, Response, StreamIdField, TimestampField


class StoreLetterRequest(Request, frozen=True, kw_only=True):
    """Store a dead letter, unless the stream has it: the raw part is a batch of one row.

    `letter`: its id, as in its header. `since_us`: it is not older than that.
    """

    stream_id: StreamIdField
    letter: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.LETTER_ID_CHARS_MAX)]
    since_us: TimestampField


class StoreLetterResponse(Response, frozen=True, kw_only=True):
    """It is committed."""

    offset: OffsetField
    is_new: bool  # False: it was there already
