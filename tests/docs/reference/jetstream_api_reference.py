# ruff: noqa: E501 (one sentence a line)
"""Generates docs/reference/jetstream-api.md from the tables of `penstock.jetstream`."""

from __future__ import annotations

import json

from penstock.jetstream.errors import NOT_SERVED
from penstock.jetstream.readers.config import fields as consumers
from penstock.jetstream.stream_config import FIELDS, ConfigField

_HEAD = """# JetStream's API: operations and fields

A broker answers this to unmodified NATS clients with `jetstream_api = auto` or `domain` ([how](../how-to/read-from-any-language.md), [why](../adr/0091-a-gateway-translates-jetstreams-api.md)).
Answers have nats-server's fields, codes and texts; `tests/integration/test_jetstream_streams.py` compares them call by call.

| operation | here |
|---|---|
| `INFO` | API level 2 (nats-server 2.12); `memory` and `storage` are 0: `STREAM.LIST` has the sizes |
| `STREAM.CREATE`, `STREAM.UPDATE` | subjects that overlap another stream's are refused (10065), which `penstock stream create` allows; `num_replicas` and `first_seq` stay as at the creation |
| `STREAM.INFO` | `subjects_filter` with `offset`, `deleted_details` (100,000 sequences); an answer above `max_payload` has fewer subjects, and their number as `limit` |
| `STREAM.NAMES`, `STREAM.LIST` | 1,024 and 256 a page; the partitions of a stream are not listed; streams without a leader are in `missing`; `num_subjects` is in `STREAM.INFO` only |
| `STREAM.DELETE` | |
| `STREAM.PURGE` | `filter`, `seq`, `keep`; a `seq` beyond the end removes everything, and the next sequence stays; a purge without these purges each partition of a stream that has several, and one that was not complete (503) is repeated |
| `STREAM.MSG.DELETE` | without `no_erase` the bytes are erased on all replicas ([how](../how-to/delete-messages.md)) |
| `STREAM.MSG.GET` | `seq`, `last_by_subj`, `next_by_subj`, `start_time`, `no_hdr`; an answer above `max_payload` is refused (10008) |
| `DIRECT.GET` | the same, with `batch`, `max_bytes`, `multi_last`, `up_to_seq`, `up_to_time`; of one subject: `DIRECT.GET.<stream>.<subject>` |

- **`seq = offset + 1`**.
- **Partition N of a stream `orders` that has several is the stream `orders-p<N>`**, which can be read, but not changed ([why](../adr/0099-each-partition-is-a-stream-that-is-read.md)). The whole is listed, with the sums of its partitions, and changed under its own name; what needs one order is refused for it (10052). The key `_penstock.partitions` of its metadata has the names. **These names are taken**: no stream can be created with one (10058; `stream_exists` over Penstock's own API, for which it holds as well), and no partition added whose name a stream has. A stream that has one from below feature level 0.4 comes first, and that partition is read by no NATS client.
- **Operations of JetStream that are not served** are refused with code 501, err_code 10003, and what to do instead: {{NOT_SERVED}}. Any other subject gets no answer.
- **Streams whose names begin with `__`** are Penstock's own: never listed, read or changed.
- `bytes` counts batches on the disk of one replica, with their headers and padding, less the share of messages that are deleted or replaced: all messages of a stream count alike; nats-server sums up the sizes of messages. `num_subjects` is left out beyond 100,000 subjects, and if it is not known within 4.5 s.
- The leader is `broker-<id>` in `cluster`.
- The leader answers `DIRECT.GET`, so that it sees each ack; nats-server lets any replica answer. It has the same answers but for these: a batch ends after 8 MiB, `multi_last` has up to 1,024 filters and is read in pieces of 1 MiB, where a subject that is overwritten meanwhile comes last, with its newer message (not beyond an `up_to_seq` or `up_to_time` of the request), an `up_to_seq` beyond the last sequence is no error, and a message above `max_payload` gives the status 413. `tests/integration/test_jetstream_lookups.py` compares the bytes of the others.
- An answer is published on the reply subject, as by nats-server: a stream on that subject stores it.
- A broker that stops refuses the requests that it has not answered (503), without waiting for the disk: ask again.
- Every answered change is known to every live broker, so the next request may reach any of them.
- A request has at most 256 KiB of headers and JSON (10025). While a broker has 1,000 requests or 2,000 look-ups under way, further ones are refused (503): ask again.

## Rights
All callers act as one user, `jetstream_user`, whose rules hold for each request; a stream without a right does not exist (10059).
Where the user may read some subjects of a stream only:

| request about | answer |
|---|---|
| a sequence, a time, a batch, or all subjects of the stream | what the user may read; any other message is not found, as if it was deleted |
| subjects by name (`last_by_subj`, `next_by_subj`, `multi_last`, `filter_subject`, `subjects_filter`) | 403 unless the user may read all that match, as with Penstock's own client |
| consumers | the same; `num_pending` counts what the user may read, gaps between sequences stay |
| the state in `STREAM.INFO` | of the whole stream, without `num_subjects` |
| `STREAM.PURGE`, `STREAM.MSG.DELETE` | 403: they need `delete` on the whole stream |

- A consumer ends with status 409 (`Consumer Deleted`) as soon as its broker knows that a right was revoked, or that the stream got `--nats-readable no`; a client that makes it anew hears 403. Clients of push consumers notice it by their heartbeats.
- More than 64 rules on subjects of one stream are too many for a consumer or a `subjects_filter` about all of it (403).
- Messages and subjects of a stream with `--nats-readable no`, the default of [encrypted](../how-to/encryption.md) ones, are not told (403); its state, and changes to it, are as for others.

## Fields of a stream's config
A field that is absent, null or at its default is accepted.
Any other value is kept as the table says, or refused with err_code 10052 and the field's name.

| field | default | becomes | note |
|---|---|---|---|
"""

_CONSUMERS = """
## Fields of a consumer's config
The same rule holds for these fields.
A consumer with acks, a durable one, and one with a priority policy is stored beside its stream, and goes on at the next leader ([why](../adr/0107-consumers-are-rows-beside-their-partition.md)); any other is in the memory of the stream's leader ([why](../adr/0094-readers-live-in-memory-at-the-leader.md)).

- **`CREATE`, `DURABLE.CREATE`, `DELETE`, `PAUSE`, `RESET`** of a stored consumer are answered once they are committed; `UNPIN`, `INFO`, `NAMES`, `LIST` as by nats-server.
- **Acks:** empty, `+ACK`, `-NAK`, `-NAK {"delay": ns}`, `+WPI`, `+TERM`, `+TERM reason`, `+NXT` with a pull request. One with a reply subject is answered once it is committed; one that names no delivery of its consumer changes nothing, and gets no answer.
- **The last three digits of the nanoseconds in a reply subject** are a token; timestamps are in µs.
- **A late ack of an earlier delivery** counts if it is `+ACK` or `+TERM`; a late `-NAK` or `+WPI` changes nothing, where nats-server takes it for the message that another client has in hand.
- **Advisories** `MAX_DELIVERIES`, `MSG_NAKED`, `MSG_TERMINATED`, `CREATED`, `DELETED`, `PAUSE`, `PINNED`, `UNPINNED` and the metric `ACK` are published as by nats-server, up to 100 a second of each broker; the others are left out.
- **A message that is gone** (deleted, purged, expired, past a limit) leaves those in hand; `num_ack_pending` falls.
- **A consumer whose reader ends for want of a right** is not deleted: it is served again by the stream's next leader.
- A durable consumer with `last_per_subject` begins again with all messages behind its position if its leader changes before it has sent the last one of each subject.

| field | default | another value | note |
|---|---|---|---|
"""


def jetstream_api() -> str:
    """Return the text of docs/reference/jetstream-api.md."""
    refused = ", ".join(f"`{name}` ({instead})" for name, instead in NOT_SERVED.items())
    return (
        _HEAD.replace("{{NOT_SERVED}}", refused)
        + "".join(map(_row, FIELDS))
        + _CONSUMERS
        + "".join(map(_consumer_row, consumers.FIELDS))
    )


def _consumer_row(field: ConfigField) -> str:
    default = "none" if field.default in ([], {}, "") else f"`{json.dumps(field.default)}`"
    kept = "refused" if not field.becomes else "kept" if " " not in field.becomes else field.becomes
    return f"| `{field.name}` | {default} | {kept} | {consumers.NOTES.get(field.name, field.note)} |\n"


def _row(field: ConfigField) -> str:
    default = "none" if field.default in (None, [], {}, "") else f"`{json.dumps(field.default)}`"
    becomes = _becomes(field.becomes)
    return f"| `{field.name}` | {default} | {becomes} | {field.note} |\n"


def _becomes(text: str) -> str:
    if not text:
        return "refused"
    if text == "kept" or " " in text.replace(", ", ""):
        return text
    return ", ".join(f"`{name}`" for name in text.split(", "))
