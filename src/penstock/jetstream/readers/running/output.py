"""Frames for all readers over the leaf connection, within a bound for each turn of the event loop."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.base import limits
from penstock.hot.deliveries import TOO_LARGE_HEADER, DecodedRows
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.deliveries import Deliveries
from penstock.jetstream.readers.feed import Feed
from penstock.jetstream.readers.pulls import frame
from penstock.jetstream.readers.reader import LEAF_BURST_BYTES, LEAF_BYTES_PER_S, Bucket, Reader

TURN_BYTES = 1 * limits.MIB
"""Frames of one turn of the event loop: about a millisecond."""


class Output:
    """Sends frames, and counts them."""

    def __init__(self, gateway: Gateway, deliveries: Deliveries) -> None:
        self.leaf = Bucket(LEAF_BYTES_PER_S, LEAF_BURST_BYTES, gateway.node.now.elapsed_us)
        self._gateway = gateway
        self._deliveries = deliveries
        self.left_bytes = 0  # of this turn
        self.delivered = 0  # messages
        self.delivered_bytes = 0  # frames, status messages among them
        self.too_large = 0  # messages without their value

    @property
    def can_deliver(self) -> bool:
        """True if nats-server takes what is sent."""
        return self._deliveries.is_up and self._deliveries.is_writable

    def send(self, frames: bytes | bytearray) -> None:
        """Send whole frames; none if it is empty."""
        if frames:
            self.left_bytes -= len(frames)
            self.delivered_bytes += len(frames)
            self._deliveries.deliver(frames)

    def send_all(self, frames: Iterable[bytes]) -> None:
        """Send whole frames."""
        for one in frames:
            self.send(one)

    def send_to(self, reader: Reader, frames: bytes | bytearray) -> None:
        """Send frames of a consumer, behind those that wait until its deliveries are committed."""
        if reader.led is not None and reader.led.is_holding and frames:
            reader.led.hold(frames)
        else:
            self.send(frames)

    def send_all_to(self, reader: Reader, frames: Iterable[bytes]) -> None:
        """Send statuses of a consumer, behind its deliveries that wait to be committed; none if too many wait."""
        for one in frames:
            if reader.led is None or not reader.led.is_held_back:
                self.send_to(reader, one)

    def status(self, inbox: bytes, block: bytes) -> None:
        """Send a status message."""
        self.send(frame(inbox, block))

    def note(self, feed: Feed, rows: DecodedRows, delivered: int, cut: int) -> None:
        """Count what was sent of some rows since they had these counts; tell once of values that are left out."""
        self.delivered += rows.delivered - delivered
        if rows.cut == cut:
            return
        self.too_large += rows.cut - cut
        if not feed.told_too_large:
            feed.told_too_large = True
            header = TOO_LARGE_HEADER.decode().strip()
            self._gateway.node.outbox.step.notices.append(
                f"stream {feed.name} has messages above nats-server's max_payload ({self._gateway.payload_max} bytes): "
                f"consumers get them without their value, with the header `{header}`; raise max_payload"
            )
