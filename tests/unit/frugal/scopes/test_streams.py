"""Which streams keep what a scope publishes."""

from __future__ import annotations

import pytest

from penstock.base.config import StreamConfig
from penstock.base.ids import StreamId
from penstock.frugal.scopes.streams import KeptStream, UnsuitableStreamError
from penstock.messages import StreamInfo


def test_a_stream_keeps_what_is_on_any_of_its_subjects() -> None:
    config = StreamConfig(name="shop", subject="shop.orders.>", more_subjects=("shop.parcels.*",))
    kept = KeptStream(StreamInfo(stream_id=StreamId(1), config=config))
    kept.check_subject("shop.orders.eu.placed")
    kept.check_subject("shop.parcels.sent")
    with pytest.raises(UnsuitableStreamError, match=r"is on 'shop.orders.>', 'shop.parcels.\*', and does not store"):
        kept.check_subject("shop.parcels.eu.sent")
