"""Every header name of nats-server 2.15: which are honoured, which are refused, and which are stored like any other.

From `server/stream.go`, `jetstream_api.go`, `consumer.go`, `msgtrace.go`, `accounts.go` and `auth_callout.go`.
"""

from __future__ import annotations

import pytest

from penstock.base.config import StreamConfig
from penstock.hot import headers
from penstock.ingest.admission import AdmissionRules, admit
from tests import groups
from tests.unit.node.harness import parse_acks

HONOURED = {
    "Nats-Expected-Last-Msg-Id": "",
    "Nats-Expected-Last-Sequence": "0",
    "Nats-Expected-Last-Subject-Sequence": "",
    "Nats-Expected-Last-Subject-Sequence-Subject": "",
    "Nats-Expected-Stream": "orders",
    "Nats-Msg-Id": "1",
    "Nats-Rollup": "sub",
    "Nats-TTL": "1h",
    "Penstock-Ack": "all",
    "Penstock-Key": "k",
    "Penstock-Key-Base64": "aw==",
    "Penstock-Tombstone": "",
}
REFUSED = [
    # of families that request something, whatever comes later; and names that are nearly one that is honoured
    "Nats-Batch-Of-A-Later-Version",
    "Nats-Expected-Of-A-Later-Version",
    "Nats-TTL ",
    "Nats-Batch-Id ",
    "Nats-Incr ",
    "Penstock-Of-A-Later-Version",
]
DISABLED = {"Nats-Batch-Id": 10174, "Nats-Incr": 10168}
"""Of features that this stream does not have: refused with nats-server's code."""
STORED = [
    # without a Nats-Batch-Id
    "Nats-Batch-Commit",
    "Nats-Batch-Sequence",
    "Nats-Consumer-Stalled",
    "Nats-Counter-Sources",
    "Nats-Last-Consumer",
    "Nats-Last-Sequence",
    "Nats-Last-Stream",
    "Nats-Marker-Reason",
    "Nats-Msg-Size",
    "Nats-Num-Pending",
    "Nats-Pending-Bytes",
    "Nats-Pending-Messages",
    "Nats-Pin-Id",
    "Nats-Request-Info",
    "Nats-Required-Api-Level",
    "Nats-Response-Type",
    "Nats-Schedule-Next",
    "Nats-Schedule-Rollup",
    "Nats-Schedule-Source",
    "Nats-Schedule-TTL",
    "Nats-Schedule-Target",
    "Nats-Scheduler",
    "Nats-Sequence",
    "Nats-Server-Xkey",
    "Nats-Service-Error",
    "Nats-Service-Error-Code",
    "Nats-Stream",
    "Nats-Stream-Identity",
    "Nats-Stream-Source",
    "Nats-Subject",
    "Nats-Time-Stamp",
    "Nats-Trace-Dest",
    "Nats-Trace-Hop",
    "Nats-Trace-Only",
    "Nats-Trace-Origin-Account",
    "Nats-UpTo-Sequence",
    "KV-Operation",
    # no name of nats-server's: JetStream stores it, too
    "Nats-Of-A-Later-Version",
    # what `penstock relay` puts onto a message
    "Penstock-Offset",
    "Penstock-Partition",
    "Penstock-Stream",
    "Penstock-Schema",
    "Penstock-Timestamp",
]
FLAGS = ("unsupported", "is_schedule", "ends_schedule")
SCHEDULES = ["Nats-Schedule", "Nats-Schedule-Time-Zone"]  # `1` is none, and 10188 where they are not allowed
RULES = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", allow_message_ttl=True, allow_rollup=True))


def block(name: str, value: str = "1") -> bytes:
    return f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode()


@pytest.mark.parametrize(("name", "value"), HONOURED.items())
def test_honoured(name: str, value: str) -> None:
    fields = headers.HeaderFields()
    text = block(name, value)
    fields.read(text, 0, len(text))
    begins = {one for one in dir(fields) if not one.startswith("_") and one not in FLAGS}
    begins = {one for one in begins if not callable(getattr(fields, one))}
    places = [one for one in begins if not one.endswith("_end") and getattr(fields, one) >= 0]
    assert [text[getattr(fields, one) : getattr(fields, f"{one}_end")] for one in places] == [value.encode()]
    admission = admit(groups.group_of([(b"orders.a", b"r", text, b"")]), RULES, log_end=0)
    assert (len(admission.rows) or admission.needs_ids, admission.dropped) == (True, {})


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    admission = admit(groups.group_of([(b"orders.a", b"r", block(name), b"v")]), RULES, log_end=0)
    (error,) = parse_acks(b"".join(admission.errors))
    assert (len(admission.rows), error.err_code) == (0, 10003)
    assert name in error.body["error"]["description"]
    assert headers.unsupported(block(name)) == [name.encode()]


@pytest.mark.parametrize(("name", "code"), DISABLED.items())
def test_disabled(name: str, code: int) -> None:
    admission = admit(groups.group_of([(b"orders.a", b"r", block(name), b"v")]), RULES, log_end=0)
    (error,) = parse_acks(b"".join(admission.errors))
    assert (len(admission.rows), error.err_code) == (0, code)
    empty = admit(groups.group_of([(b"orders.a", b"r", block(name, ""), b"v")]), RULES, log_end=0)
    assert len(empty.rows) == 1


@pytest.mark.parametrize("headers", [None, block("A"), block("Nats-Batch-Id"), block("Nats-Msg-Id")])
@pytest.mark.parametrize("reply", [b"_INBOX.a.b.10.ok.1.0.$FI", b"a.$FI"])
def test_a_message_of_a_fast_batch_is_refused(headers: bytes | None, reply: bytes) -> None:
    admission = admit(groups.group_of([(b"orders.a", reply, headers, b"v")]), RULES, log_end=0)
    (error,) = parse_acks(b"".join(admission.errors))
    assert (len(admission.rows), error.err_code) == (0, 10205)


@pytest.mark.parametrize("reply", [b".$FI", b"a.$FI.b", b"a.$Fi", b"a$FI", b"$FI", b"I"])
def test_other_reply_subjects_are_of_no_fast_batch(reply: bytes) -> None:
    assert len(admit(groups.group_of([(b"orders.a", reply, None, b"v.$FI ")]), RULES, log_end=0).rows) == 1


@pytest.mark.parametrize("name", STORED)
def test_stored(name: str) -> None:
    admission = admit(groups.group_of([(b"orders.a", b"r", block(name), b"v")]), RULES, log_end=0)
    assert groups.headers(admission.rows) == [block(name)]
    assert (admission.errors, admission.dropped) == ([], {})
    assert not headers.unsupported(block(name)) or name.startswith("Nats-Schedule-")


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_refused_where_they_are_not_allowed(name: str) -> None:
    admission = admit(groups.group_of([(b"orders.a", b"r", block(name), b"v")]), RULES, log_end=0)
    (error,) = parse_acks(b"".join(admission.errors))
    assert (len(admission.rows), error.err_code) == (0, 10188)


@pytest.mark.parametrize("name", ["Nats-Schedule", "Nats-Schedule-Target", "Nats-Schedule-TTL"])
def test_schedules_that_a_consumer_delivers_are_refused(name: str) -> None:
    reply = b"$JS.ACK.stream.consumer.1.2.3.4.0"
    admission = admit(groups.group_of([(b"orders.a", reply, block(name), b"v")]), RULES, log_end=0)
    assert (len(admission.rows), admission.dropped) == (0, {"refused": 1})
    assert admission.undelivered


def test_each_name_is_in_one_list() -> None:
    names = [*HONOURED, *REFUSED, *DISABLED, *STORED, *SCHEDULES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("subject", "lines", "said"),
    [
        (b"orders.a", "Nats-Schedule: 1", "on orders.a: message schedules is disabled"),
        (b"orders.a", "Nats-Incr: 1", "on orders.a: message counters is disabled"),
        (b"orders.caf\xe9", "", "on orders.caf\\xe9: the subject is not valid UTF-8"),
        (b"orders.*", "", "on orders.*: the subject 'orders.*' holds the wildcard"),
        (b"orders.a", "Nats-TTL: soon", "on orders.a: invalid per-message TTL"),
        (b"orders.a", "Nats-\x1b[31mRollup: 1\r\nNats-Incr-\n\x07: 1", "Nats-Incr-\\n\\x07"),
    ],
)
def test_what_nobody_hears_is_noted(subject: bytes, lines: str, said: str) -> None:
    text = f"NATS/1.0\r\n{lines}\r\n\r\n".encode() if lines else None
    sound = (b"orders.b", None, None, b"v")
    admission = admit(groups.group_of([sound, (subject, None, text, b"v"), sound]), RULES, log_end=0)
    assert (len(admission.rows), admission.unheard, admission.dropped) == (2, 1, {"refused": 1})
    assert said in admission.unheard_why
    assert admission.unheard_why.isprintable()
    heard = admit(groups.group_of([(subject, b"r", text, b"v")]), RULES, log_end=0)
    assert (heard.unheard, len(heard.errors)) == (0, 1)
