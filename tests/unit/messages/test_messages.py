"""The table of requests, and what older and newer versions make of each other's messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.messages import (
    API_OF_REQUEST,
    APIS,
    Api,
    CreateStreamRequest,
    HelloRequest,
    NatsStatus,
    StatusResponse,
    StreamInfo,
    StreamList,
    Target,
    api_versions,
)
from penstock.messages.apis import is_asked_by_brokers
from penstock.wire import HEAD_BYTES, encode_request


def test_each_request_has_one_number_and_both_directions_of_the_table_agree() -> None:
    assert set(APIS) == {int(api) for api in Api}
    assert all(API_OF_REQUEST[spec.request] is spec for spec in APIS.values())
    assert len({spec.response for spec in APIS.values()}) == len(APIS)
    assert all(1 <= spec.version_min <= spec.version_max for spec in APIS.values())


def test_the_numbers_of_the_requests_are_fixed_for_ever() -> None:
    assert {api.name: int(api) for api in Api} == {
        "HELLO": 1,
        "METADATA": 2,
        "CREATE_STREAM": 3,
        "ALTER_STREAM": 4,
        "DELETE_STREAM": 5,
        "FIND_STREAMS": 6,
        "FETCH": 7,
        "GET": 8,
        "LIST_OFFSETS": 9,
        "APPEND": 10,
        "STATUS": 11,
        "TRUNCATE": 12,
        "SET_INTAKE": 13,
        "APPEND_ONCE": 14,
        "LIST_PRODUCERS": 15,
        "REPORT_ARCHIVED": 16,
        "VERIFY": 18,
        "OFFSETS_STREAM": 20,
        "COMMIT_OFFSETS": 21,
        "FETCH_OFFSETS": 22,
        "LIST_GROUPS": 23,
        "GROUP_HEARTBEAT": 24,
        "STAGED_STREAM": 25,
        "STAGE": 26,
        "PUBLISH_STAGED": 27,
        "LIST_PUBLISHED": 28,
        "AUTHENTICATE": 29,
        "LIST_USERS": 30,
        "CREATE_USER": 31,
        "ALTER_USER": 32,
        "DELETE_USER": 33,
        "CHANGE_RULES": 34,
        "TEST_ACCESS": 35,
        "APPEND_AT": 36,
        "EXPORT_USERS": 37,
        "SCHEMAS_STREAM": 38,
        "REGISTER_SCHEMAS": 39,
        "LIST_SCHEMAS": 40,
        "GET_SCHEMA_TEXT": 41,
        "FORGET_SCHEMAS": 42,
        "RAISE_FEATURE_LEVEL": 43,
        "DELETE_MESSAGES": 44,
        "PURGE_SUBJECT": 45,
        "AWAIT_ERASURE": 46,
        "LIST_SUBJECTS": 48,
        "FIND_MESSAGES": 49,
        "TAKE_API": 50,
        "ASK_CONSUMERS": 51,
        "PEER_HELLO": 64,
        "RAFT": 65,
        "REPLICA_FETCH": 66,
        "REPLICA_PROGRESS": 67,
        "HEARTBEAT": 68,
        "REGISTER_BROKER": 69,
        "CHANGE_ISR": 70,
        "STOP_BROKER": 71,
        "FORWARD": 72,
        "JOIN": 73,
        "AWAIT_STREAM": 74,
        "REPLICA_RANGE": 75,
        "MARK_KEYS": 76,
        "MESSAGE_IDS": 77,
        "AWAIT_METADATA": 78,
        "ADD_COMPANION": 79,
        "ERASED": 80,
        "RECORD_DELETION": 81,
        "PASS_API_CALLS": 82,
        "LEASE": 83,
        "REPORT_API": 84,
        "STORE_LETTER": 85,
    }


def test_only_an_append_a_login_and_what_is_forwarded_may_not_be_repeated() -> None:
    assert [spec.api for spec in APIS.values() if not spec.repeatable] == [Api.APPEND, Api.AUTHENTICATE, Api.FORWARD]


def test_a_hello_fits_what_a_broker_reads_before_it_knows_its_client() -> None:
    hello = HelloRequest(client_name="n" * 256, client_version="v" * 32, api_versions=api_versions())
    assert len(encode_request(hello, 1)) - HEAD_BYTES < limits.HELLO_BYTES_MAX * 3 // 4


@pytest.mark.parametrize("spec", APIS.values(), ids=lambda spec: spec.api.name)
def test_every_field_behind_the_first_version_can_be_left_out_or_is_named_when_missing(spec) -> None:
    for message_type in (spec.request, spec.response):
        required = [field.name for field in msgspec.structs.fields(message_type) if field.required]
        if required:
            with pytest.raises(msgspec.ValidationError, match="missing required field"):
                msgspec.msgpack.decode(b"\x80", type=message_type)
        else:
            assert msgspec.msgpack.decode(b"\x80", type=message_type) == message_type()


def test_a_config_field_of_a_newer_broker_is_ignored_but_one_of_a_newer_client_is_refused() -> None:
    config = {"name": "a", "subject": "b", "shred": True}
    info = msgspec.convert({"stream_id": 1, "config": config}, StreamInfo)
    assert (info.name, info.subject) == ("a", "b")
    assert isinstance(info.config, StreamConfig)
    with pytest.raises(msgspec.ValidationError, match="shred"):
        msgspec.convert({"config": config}, CreateStreamRequest)


def test_no_response_shows_what_a_client_logs_in_to_nats_with() -> None:
    """They are logged, and stand in tracebacks."""
    with_urls = [
        spec.response
        for spec in APIS.values()
        if any(field.name == "nats_urls" for field in msgspec.structs.fields(spec.response))
    ]
    assert len(with_urls) == 2
    for message_type in with_urls:
        given = {"nats_urls": ["nats://penstock:s3cret@[::1]:4222"], "broker_id": 1, "broker_version": "1", "data": b""}
        shown = repr(msgspec.convert(given | {"cluster_id": "c", "format_version": 1}, message_type))
        assert "s3cret" not in shown
        assert "nats://[::1]:4222" in shown


def test_clients_ask_the_leader_of_a_partition_for_all_that_concerns_it() -> None:
    """Otherwise they try one broker after the other. Replicas verify their own files."""
    of_a_partition = {
        spec.api
        for spec in APIS.values()
        if {"stream_id", "partition"} <= {field.name for field in msgspec.structs.fields(spec.request)}
    }
    elsewhere = {
        one for one in of_a_partition if APIS[one].target is not Target.LEADER and not is_asked_by_brokers(one)
    }
    assert elsewhere == {Api.VERIFY}


def test_what_a_stream_holds_is_known_once_all_leaders_answer() -> None:
    def info(**partition: int | None) -> StreamInfo:
        parts: Any = [{"leader_epoch": 1, "log_start": 3, "committed_end": 10, "size_bytes": 100, **partition}]
        parts.append({"partition": 1, "leader_epoch": 1, "log_start": 0, "committed_end": 0})
        config = {"name": "a<b>", "subject": "a.>", "max_bytes": 4096}
        return msgspec.convert({"stream_id": 1, "config": config, "partitions": parts}, StreamInfo)

    known = info(last_timestamp_us=1_000_000)
    assert (known.messages, known.size_bytes) == (7, 100)
    assert known.last_timestamp == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert repr(known) == (
        "StreamInfo('a<b>', subject='a.>', partitions=2, messages=7, size_bytes=100, "
        "last_timestamp='1970-01-01T00:00:01+00:00')"
    )
    assert "<th>name</th><td>a&lt;b&gt;</td>" in known._repr_html_()
    assert "<th>max_bytes</th><td>4096</td>" in known._repr_html_()
    assert "max_age_ms" not in known._repr_html_()
    unknown = info(committed_end=None, last_timestamp_us=1_000_000)
    assert (unknown.messages, unknown.size_bytes, unknown.last_timestamp) == (None, None, None)
    assert "100 B" in StreamList([known, unknown])._repr_html_()


def test_a_status_is_one_line_for_people() -> None:
    nats = NatsStatus(state="connecting")
    status = StatusResponse(
        broker_id=1, broker_version="1", cluster_id="c", address="h:1", started_us=0, uptime_ms=1, nats=nats, streams=2
    )
    text = "StatusResponse(1, address='h:1', nats='connecting', metadata_leader=None, brokers=0, streams=2, "
    assert repr(status) == text + "partitions_by_state={}, connections=0)"
    told = msgspec.structs.replace(status, waits_for="the metadata leader")
    assert "waits_for='the metadata leader'" in repr(told)
