"""The consumers of a stream, carried over to another one with the same messages and offsets.

Rules: a consumer goes on where it was: its floor, what is in hand with the count of deliveries, and the time that is
left. One batch creates it, and one that exists with the same config stays as it is, so a run that is repeated changes
nothing. Rows are more than their consumers: what cannot be carried is a note with its name, never a failure, and never
left out in silence.

| consumer                        | carried                                                                     |
|---------------------------------|-----------------------------------------------------------------------------|
| durable, or with acks           | yes; `num_replicas` becomes that of the stream                              |
| push                            | if the user is an administrator                                             |
| neither durable nor with acks   | no: it ends with its clients                                                |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.units import counted
from penstock.messages import ExportedConsumer

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client
    from penstock.messages import StreamInfo

_NOTED = (
    ErrorCode.NOT_AUTHORIZED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.JETSTREAM_OFF,
    ErrorCode.BAD_REQUEST,  # its config is refused there
    ErrorCode.CONSUMER_EXISTS,
    ErrorCode.OVERLOADED,  # the limit of consumers
    ErrorCode.TOO_LARGE,
    ErrorCode.QUOTA_EXCEEDED,
    ErrorCode.STREAM_CHANGED,  # JetStream's API shows no such stream
)
_NAMED_MAX = 3  # consumers with a note of their own

Note = Callable[[str], None]


class CarriedConsumer(NamedTuple):
    """A consumer and the partition that has it."""

    partition: int
    exported: ExportedConsumer


def read_consumers(client: Client, info: StreamInfo, timeout_s: float, note: Note) -> list[CarriedConsumer]:
    """Return the consumers of a stream, by partition and name; note those that are left out."""
    try:
        found = [
            CarriedConsumer(number, one)
            for number in range(max(1, len(info.partitions)))
            for one in client.consumers.export_all(info, partition=number, timeout=timeout_s)
        ]
    except RemoteError as error:
        if error.code not in _NOTED:
            raise
        if error.code != ErrorCode.JETSTREAM_OFF or error.details.get("has_consumers"):
            note(f"note: the consumers of stream {info.name} are left out: {error.message}")
        return []
    carried = [one for one in found if is_kept(one.exported.config)]
    why = "it is not durable and has no acks, so it ends with its clients"
    _tell(info, {one.exported.name: why for one in found if not is_kept(one.exported.config)}, note)
    return carried


def restore_consumers(
    client: Client, info: StreamInfo, consumers: Iterable[CarriedConsumer], timeout_s: float, note: Note
) -> int:
    """Create these consumers in a stream with the same messages, unless they exist; return how many are there."""
    restored, refused = 0, dict[str, str]()
    for partition, exported in consumers:
        try:
            client.consumers.restore(info, with_own_replicas(exported), partition=partition, timeout=timeout_s)
        except RemoteError as error:
            if error.code not in _NOTED:
                raise
            refused[exported.name] = error.message
        else:
            restored += 1
    _tell(info, refused, note)
    return restored


def is_kept(config: Mapping[str, object]) -> bool:
    """True if a consumer with this config outlives the leadership of its broker."""
    has_acks = config.get("ack_policy", "none") != "none"
    return bool(config.get("durable_name")) or has_acks or config.get("priority_policy", "none") != "none"


def with_own_replicas(exported: ExportedConsumer) -> ExportedConsumer:
    """Return the consumer with the number of replicas of its stream, whatever that is."""
    return msgspec.structs.replace(exported, config={**exported.config, "num_replicas": 0})


def _tell(info: StreamInfo, refused: dict[str, str], note: Note) -> None:
    """Note which consumers are left out, with the reason of each of the first ones."""
    for name, why in list(refused.items())[:_NAMED_MAX]:
        note(f"note: consumer {name} of stream {info.name} is left out: {why}")
    if more := list(refused)[_NAMED_MAX:]:
        note(f"note: {counted(len(more), 'more consumer')} of stream {info.name} left out: {', '.join(more)}")
