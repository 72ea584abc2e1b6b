"""Any bytes and headers at a server are answered, or a FrameError; nothing else comes out."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.frugal.codecs import CODECS
from penstock.frugal.context import Context
from penstock.frugal.errors import FrameError, FrugalError
from penstock.frugal.framing import Packet
from penstock.frugal.native import FRAMINGS, NATIVE
from penstock.frugal.processor import Processor
from tests.extent import examples
from tests.frugal_frames import encode_frame
from tests.frugal_shop import COUNT, ORDER, PLACE, SHOP, Shop


class Quiet(Shop):
    """Handlers that take whatever decodes."""

    async def place(self, ctx, order, copies):
        return order

    def count(self, ctx, customer):
        return 1

    async def wait_for(self, ctx, name):
        return name


def processor(codec):
    return Processor([(SHOP, Quiet())], codec=codec, now=lambda: 0.0)


async def answer(codec, packet):
    """Return what a server answers; None: nothing."""
    core = processor(codec)
    try:
        request = core.accept(packet)
    except FrameError:
        return None
    return await core.answer(request, bytes_max=1 << 20)


def check(codec, packet):
    answered = asyncio.run(answer(codec, packet))
    assert answered is None or (type(answered) is Packet and answered.size > 0)


METHODS = st.sampled_from([*SHOP.methods, "Place", "", "x" * 300]) | st.text(max_size=5)
HEADERS = st.dictionaries(
    st.sampled_from(["Content-Type", "Frugal-Timeout-Ms", "Frugal-Correlation-Id", "Nats-Msg-Id", "_x", "a"]),
    st.text(max_size=10)
    | st.sampled_from([each.content_type for each in CODECS.values()])
    | st.sampled_from(["-1", "99999999999999999999999", "\udcff"]),
)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@settings(max_examples=examples(300), deadline=None)
@given(method=METHODS, headers=HEADERS, data=st.binary(max_size=80))
def test_native_requests_of_any_bytes(codec, method, headers, data):
    check(codec, Packet(data, {**headers, "Frugal-Method": method}))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@settings(max_examples=examples(300), deadline=None)
@given(
    headers=st.dictionaries(st.sampled_from(["_opid", "_cid", "_timeout", "a"]), st.text(max_size=8)),
    data=st.binary(max_size=80),
)
def test_frames_of_any_message(codec, headers, data):
    check(codec, Packet(encode_frame({"_opid": "1", **headers}, data)))
    check(codec, Packet(data))


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_requests_and_answers_with_changed_bytes(framing, codec, data):
    used = FRAMINGS[framing]
    arguments = PLACE.arguments(order=ORDER, copies=2)
    packet = used.encode_request(codec, PLACE, Context("c"), 1, 0.0, arguments)
    answered = asyncio.run(answer(codec, packet))
    assert answered is not None
    for each in (packet, answered):
        changed = bytearray(each.data)
        for _ in range(data.draw(st.integers(1, 3))):
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        cut = changed[: data.draw(st.integers(0, len(changed)))]
        for hostile in (Packet(bytes(changed), each.headers), Packet(bytes(cut), each.headers)):
            check(codec, hostile)
            try:
                used.decode_answer(codec, PLACE, Context("c"), 1, hostile)
            except FrugalError:
                continue


@settings(max_examples=examples(200), deadline=None)
@given(headers=HEADERS, code=st.text(max_size=6) | st.sampled_from(["404", "0404", "400", "99999999999"]))
def test_native_answers_with_any_headers(headers, code):
    packet = Packet(b"", {**headers, "Nats-Service-Error-Code": code})
    with pytest.raises(FrugalError):
        NATIVE.decode_answer(CODECS["binary"], COUNT, Context("c"), 1, packet)
