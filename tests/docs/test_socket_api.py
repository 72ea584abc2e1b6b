"""The page on the socket API names every request, field and error code there is, and its hex is what is sent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.access.credentials import TOKEN_ITERATIONS
from penstock.access.scram import ScramClient
from penstock.base import limits
from penstock.base.ids import LeaderEpoch, Offset, StreamId
from penstock.client.link.error_codes import ERROR_CODES, Handling
from penstock.messages import (
    APIS,
    ApiSpec,
    AppendRequest,
    AppendResponse,
    AuthenticateRequest,
    AuthenticateResponse,
    FetchRequest,
    HelloRequest,
    MetadataRequest,
    StatusResponse,
)
from penstock.wire import Frame, FrameDecoder, decode_response, encode_checked_request, encode_request
from tests.groups import Columns, encoded

PAGE = (Path(__file__).parents[2] / "docs/reference/socket-api.md").read_text(encoding="utf-8")
HELLO = HelloRequest(client_name="example", client_version="1.0")
STREAM = StreamId(6)


def dumps() -> list[bytes]:
    """The hex blocks of the page, in order; one that ends in "…" has only the beginning of its frame."""
    blocks = re.findall(r"^```\n(  0 \| .*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    found = []
    for block in blocks:
        lines = re.findall(r"^ *(\d+) \| ((?:[0-9a-f]{2} ?)+)", block, flags=re.MULTILINE)
        assert [int(position) for position, _ in lines] == list(range(0, 16 * len(lines), 16))
        found.append(bytes.fromhex("".join(content for _, content in lines)))
    return found


def frame_of(data: bytes) -> Frame:
    decoder = FrameDecoder(limits.RESPONSE_BYTES_MAX)
    decoder.receive(data)
    frame = decoder.next_frame()
    assert frame is not None
    return frame


@pytest.mark.parametrize("spec", APIS.values(), ids=lambda spec: spec.api.name)
def test_the_table_has_the_fields_of_each_request(spec: ApiSpec) -> None:
    rows = re.findall(rf"^\| {int(spec.api)} \| {spec.api.name.lower()} \|(.*)\|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 1
    request, answer = rows[0].split(" | ")[:2]
    assert [name for name in spec.request.__struct_fields__ if f"`{name}`" not in request] == []
    if spec.response is not StatusResponse:
        assert [name for name in spec.response.__struct_fields__ if f"`{name}`" not in answer] == []


def test_the_table_of_versions_is_that_of_the_code() -> None:
    section = PAGE.split("### Versions\n")[1].split("\n###")[0]
    newest: dict[str, int] = {}
    for name, version in re.findall(r"^\| (\w+) \| (\d+) \|", section, flags=re.MULTILINE):
        newest[name] = int(version)
    assert newest == {spec.api.name.lower(): spec.version_max for spec in APIS.values() if spec.version_max > 1}


def test_the_transcript_is_what_a_client_sends() -> None:
    page = dumps()
    challenge = decode_response(frame_of(page[3]), AuthenticateRequest)
    assert isinstance(challenge, AuthenticateResponse)
    login = ScramClient("admin", "pencil-7677", "rOprNGfwEbeRWgbNEkqO", iterations=limits.PASSWORD_ITERATIONS)
    batch = encoded(
        Columns([b"orders.eu", b"orders.us"], [b"k1", None], [b"hello", b""], None),  # the one that FORMAT.md prints
        base_offset=42,
        timestamp_us=1_700_000_000_000_000,
        leader_epoch=1,
    )
    assert page[0] == encode_request(HELLO, 1)
    assert page[2] == encode_request(AuthenticateRequest(mechanism="SCRAM-SHA-256", data=login.first()), 2)
    proof = login.prove(challenge.data)
    assert page[4] == encode_request(AuthenticateRequest(mechanism="SCRAM-SHA-256", data=proof), 3)
    signature = re.search(rb"v=[A-Za-z0-9+/=]{44}", page[5])
    assert signature is not None
    login.check(signature[0])
    assert page[6] == encode_request(MetadataRequest(names=("orders",)), 4)
    assert page[8] == encode_request(AppendRequest(stream_id=STREAM), 5, raw_bytes=len(batch))
    assert page[10] == encode_request(FetchRequest(stream_id=STREAM, offset=Offset(0)), 6, version=1)
    assert page[12] == encode_checked_request(HELLO, 1)
    assert len(page) == 13


def test_the_long_poll_is_the_fetch_with_the_bytes_that_the_page_says() -> None:
    assert "offset `02`, wait_ms_max `cd 01 f4`, leader_epoch `01`, and lengths two bytes more" in PAGE
    wait = FetchRequest(stream_id=STREAM, offset=Offset(2), leader_epoch=LeaderEpoch(1), wait_ms_max=500)
    fetch, long_poll = dumps()[10], encode_request(wait, 7, version=1)
    said = fetch[16:].replace(b"offset\x00", b"offset\x02").replace(b"wait_ms_max\x00", b"wait_ms_max\xcd\x01\xf4")
    assert long_poll[16:] == said.replace(b"leader_epoch\xc0", b"leader_epoch\x01")
    assert len(long_poll) == len(fetch) + 2


def test_the_answer_to_the_append_says_what_the_page_says() -> None:
    answer = decode_response(frame_of(dumps()[9]), AppendRequest)
    assert isinstance(answer, AppendResponse)
    assert (answer.base_offset, answer.end_offset, answer.leader_epoch, answer.fsynced) == (0, 2, 1, True)


def test_the_iterations_are_those_that_the_client_accepts() -> None:
    accepted = f"only {limits.PASSWORD_ITERATIONS:,} iterations for a password and {TOKEN_ITERATIONS} for a token"
    assert accepted in PAGE


# What a client does, by what Penstock's own client does: words of which one is in the row of such a code.
_DOES = {
    Handling.REPEATS: ("retry",),
    Handling.REPEATS_IF_HARMLESS: ("retry an idempotent request", "as in the row above"),
    Handling.ASKS_LEADER: ("ask for the leader and retry",),
    Handling.ASKS_OTHERS: ("ask another", "as above"),
    Handling.WAITS: ("wait",),
    Handling.LOGS_IN: ("log in again, once",),
}


def test_each_error_code_is_in_one_row_which_says_what_a_client_does() -> None:
    section = PAGE.split("## Errors: what a client does\n")[1].split("\n## ")[0]
    rows: dict[str, tuple[str, str]] = {}
    for codes, stored, does in re.findall(r"^\| (`.*?) \| (.*?) \| (.*) \|$", section, flags=re.MULTILINE):
        for code in re.findall(r"`(\w+)`", codes):
            assert code not in rows
            rows[code] = (stored, does)
    assert set(rows) == {str(code) for code in ERROR_CODES}
    for code, told in ERROR_CODES.items():
        stored, does = rows[str(code)]
        assert stored.split(";")[0] == told.stored.value, code
        words = _DOES.get(told.handling)
        assert words is None or any(word in does for word in words), code
