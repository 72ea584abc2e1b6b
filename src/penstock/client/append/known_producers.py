"""List the idempotent producers that the leaders of a stream know, and the last sequence of each."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from penstock.client.link.link import Link
from penstock.client.read.reading import partition_number
from penstock.client.values import datetime_of
from penstock.messages import ListProducersRequest, ListProducersResponse, StreamInfo


class KnownProducer(NamedTuple):
    """A producer that appended to a partition within the last ten minutes."""

    partition: int
    producer_id: int
    epoch: int
    last_sequence: int  # sequence number of its last appended row, counted from 0 in each epoch
    last_offset: int  # offset of that row
    last_append: datetime


async def known_producers(link: Link, info: StreamInfo, partition: int | None, timeout_s: float) -> list[KnownProducer]:
    """Return the producers of all partitions, or of one, by partition and id. `timeout_s` bounds each answer."""
    numbers = [partition_number(info, partition)]
    if partition is None and len(info.partitions) > 1:
        numbers = [one.partition for one in info.partitions]
    found = []
    for number in numbers:
        after = 0
        while True:
            request = ListProducersRequest(stream_id=info.stream_id, partition=number, after_producer_id=after)
            answer, _ = await link.call(request, ListProducersResponse, timeout_s=timeout_s)
            if not answer.producers:
                break
            after = answer.producers[-1].producer_id
            found += [
                KnownProducer(
                    int(number),
                    one.producer_id,
                    one.producer_epoch,
                    one.last_sequence,
                    one.last_offset,
                    datetime_of(one.timestamp_us),
                )
                for one in answer.producers
            ]
    return found
