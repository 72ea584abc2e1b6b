"""Requests to JetStream's API from anybody: each gets at most one answer, and none costs the broker anything."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import RemoteError
from penstock.jetstream.api_call import _OPERATIONS
from penstock.jetstream.errors import ApiError
from penstock.jetstream.stream_config import (
    FIELDS,
    completed,
    is_same,
    json_config,
    parsed_config,
    to_penstock,
)
from tests.extent import examples
from tests.unit.jetstream.api_broker import ApiBroker

NAMES = st.sampled_from(["orders", "a", "__offsets", "", "a.b", "*", "x" * 300, "ä", "a b"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
OPTIONS = ("pedantic", "offset", "subjects_filter", "deleted_details", "subject", "filter", "seq", "keep", "no_erase")
FIELD_NAMES = st.sampled_from([*(field.name for field in FIELDS), *OPTIONS, "unheard_of"])
OBJECTS = st.dictionaries(FIELD_NAMES, VALUES, max_size=6)
SENSIBLE = {
    "description": st.text(max_size=20),
    "subjects": st.lists(st.sampled_from(["a.>", "b.*", "c", "$KV.x.>"]), unique=True, max_size=3),
    "max_msgs": st.integers(-2, 2**40),
    "max_bytes": st.integers(-2, 2**40),
    "max_age": st.integers(1, 10**6).map(lambda ms: (ms + 120_000) * 1_000_000),
    "max_msgs_per_subject": st.integers(-2, 1_000),
    "max_msg_size": st.integers(-2, 10**6),
    "discard": st.sampled_from(["", "old", "new"]),
    "storage": st.sampled_from(["file", "memory"]),
    "no_ack": st.booleans(),
    "duplicate_window": st.integers(100, 120_000).map(lambda ms: ms * 1_000_000),
    "compression": st.sampled_from(["none", "s2"]),
    "allow_direct": st.booleans(),
    "deny_delete": st.booleans(),
    "allow_rollup_hdrs": st.booleans(),
    "allow_msg_ttl": st.booleans(),
    "metadata": st.dictionaries(st.text("ab._", min_size=1, max_size=5), st.text(max_size=5), max_size=3),
}
CONFIGS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({}, optional=SENSIBLE)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(_OPERATIONS), NAMES, st.one_of(OBJECTS.map(json.dumps), st.text(max_size=40))),
        max_size=8,
    )
)
def test_no_request_stops_the_broker(calls: list[tuple[str, str, str]]) -> None:
    broker = ApiBroker().start()
    broker.call("STREAM.CREATE.orders", {"name": "orders", "subjects": ["orders.>"]})
    broker.publish("orders.a", b"x", count=3)
    for operation, name, request in calls:
        broker.call(f"{operation}.{name}" if name else operation, request.encode("utf-8", "surrogatepass"))
    assert broker.call("STREAM.NAMES")["total"] >= 0
    assert not broker.gateway.under_way


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=30))
def test_no_bytes_of_a_peer_or_of_nats_stop_the_broker(raw: bytes, subject: bytes) -> None:
    broker = ApiBroker().start()
    with contextlib.suppress(RemoteError):
        broker.gateway.passed_on(raw, broker.clock.now)
    token = subject.translate(None, b" \r\n\t\0") or b"x"
    broker.deliver([(b"$JS.API." + token, b"_INBOX.x", raw, raw)])
    assert broker.call("STREAM.NAMES")["total"] == 0


@settings(max_examples=examples(60), deadline=None)
@given(CONFIGS, CONFIGS)
def test_a_config_comes_back_as_it_was_given(config: dict[str, Any], other: dict[str, Any]) -> None:
    broker = ApiBroker().start()
    given_config = {"name": "s", **config}
    try:
        wanted = completed(parsed_config(json.dumps(given_config).encode()))
        to_penstock(wanted)
    except ApiError:
        assert "error" in broker.call("STREAM.CREATE.s", given_config)
        return
    made = broker.call("STREAM.CREATE.s", given_config)
    if "error" in made:
        assert made["error"]["err_code"] == 10052
        return
    assert made["config"] == json_config(wanted)
    assert broker.call("STREAM.INFO.s")["config"] == json_config(wanted)
    assert broker.call("STREAM.CREATE.s", given_config)["did_create"]
    changed = {"name": "s", **other}
    updated = broker.call("STREAM.UPDATE.s", changed)
    shown = broker.call("STREAM.INFO.s")["config"]
    if "error" in updated:
        assert shown == json_config(wanted)
    else:
        new = completed(parsed_config(json.dumps(changed).encode()))
        assert is_same(shown, json_config(new))
        assert is_same(broker.call("STREAM.UPDATE.s", shown)["config"], shown)
