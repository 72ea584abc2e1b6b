"""Calls from a client to a handler through bytes, in each framing and codec, without a network."""

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from penstock.frugal.codecs import BINARY, CODECS, ApplicationException, MessageKind, struct_spec
from penstock.frugal.context import Context
from penstock.frugal.contracts import MethodType, ServiceType
from penstock.frugal.errors import (
    ApplicationError,
    BadSequenceId,
    CallUnauthenticated,
    CodecError,
    DeadlineExceeded,
    FrameError,
    InternalError,
    InvalidMessageType,
    MissingResult,
    ProtocolError,
    RequestTooLarge,
    ResponseTooLarge,
    ServiceNotAvailable,
    TransportClosed,
    UnknownMethod,
    WrongMethodName,
)
from penstock.frugal.frames import decode_frame
from penstock.frugal.framing import FRUGAL, Packet
from penstock.frugal.local_transport import LocalTransport
from penstock.frugal.middleware import Side
from penstock.frugal.native import FRAMINGS, NATIVE
from penstock.frugal.processor import Processor
from tests.frugal_frames import encode_frame
from tests.frugal_shop import COUNT, I64, NOTE, ORDER, PING, PLACE, SHOP, NotFound, Shop, ShopClient, result_of

WAYS = [(framing, codec) for framing in FRAMINGS for codec in CODECS.values()]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Served:
    """A client, the handler behind it, and the clock of both."""

    def __init__(self, *, codec=BINARY, framing="frugal-v0", client=(), server=(), bytes_max=1 << 20, handler=None):
        self.clock = Clock()
        self.shop = Shop()
        self.processor = Processor([(SHOP, handler or self.shop)], codec=codec, middleware=server, now=self.clock)
        self.transport = LocalTransport(self.processor, bytes_max=bytes_max)
        self.client = ShopClient(self.transport, SHOP, codec=codec, framing=framing, middleware=client, now=self.clock)


@asynccontextmanager
async def served(**options):
    made = Served(**options)
    async with made.client:
        yield made


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("other", CODECS.values(), ids=CODECS)
async def test_codecs_that_differ_are_told_to_both_sides_in_frugal_v0_and_agreed_upon_in_native(codec, other):
    async with served(codec=codec) as made:
        native = ShopClient(made.transport, SHOP, codec=other, framing="native", now=made.clock)
        assert await native.count(Context(), "Ann") == 3
        if codec is other:
            return
        plain = ShopClient(made.transport, SHOP, codec=other, now=made.clock)
        with pytest.raises(CodecError) as told:
            await plain.count(Context(), "Ann")
        assert f"is in Thrift's {codec.name} protocol, and is read here as {other.name}" in str(told.value)
        answer = await answer_to_a_message_of(made, other)
        header, start = codec.decode_header(answer)
        said = codec.decode_value(answer, start, struct_spec(ApplicationException)).message
        assert header.kind is MessageKind.EXCEPTION
        assert f"is in Thrift's {other.name} protocol, and is read here as {codec.name}" in said


async def answer_to_a_message_of(made, codec):
    """Return the Thrift message of the answer to a request in this codec."""
    packet = FRUGAL.encode_request(codec, COUNT, Context(), 7, made.clock(), COUNT.arguments(customer="Ann"))
    answered = await made.processor.answer(made.processor.accept(packet), bytes_max=1 << 20)
    return decode_frame(answered.data).message


@pytest.mark.parametrize(("framing", "codec"), WAYS, ids=[f"{framing}-{codec.name}" for framing, codec in WAYS])
async def test_a_call_has_its_result_headers_and_declared_exceptions(framing, codec):
    async with served(framing=framing, codec=codec) as made:
        ctx = Context("c1", headers={"tenant": "ä"})
        placed = await made.client.place(ctx, ORDER, 2)
        assert placed == replace(ORDER, lines=ORDER.lines * 2)
        assert dict(ctx.response_headers) == {"copies": "2"}
        (received,) = made.shop.contexts
        assert (received.correlation_id, dict(received.headers)) == ("c1", {"tenant": "ä"})
        assert await made.client.ping(Context()) is None
        assert await made.client.count(Context(), "Ann") == 3
        with pytest.raises(NotFound) as raised:
            await made.client.place(Context(), replace(ORDER, number=404), 1)
        assert (raised.value.number, raised.value.reason) == (404, "gone")
        await made.client.note(Context(), "tea")
        assert await made.shop.notes.get() == "tea"
        stats = made.processor.stats
        assert (stats["place"].requests, stats["place"].errors) == (2, 0)


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_an_undeclared_exception_stays_in_the_log_of_the_service(framing, caplog):
    async with served(framing=framing) as made:
        with pytest.raises(InternalError) as raised:
            await made.client.place(Context("c7"), replace(ORDER, number=500), 1)
    assert "secret" not in str(raised.value)
    assert "Traceback" not in str(raised.value)
    (record,) = caplog.records
    assert "'place' failed, correlation id 'c7'" in record.message
    assert "the log of the service tells why, at correlation id 'c7'" in str(raised.value)
    assert raised.value.correlation_id == "c7"
    assert isinstance(record.exc_info[1], KeyError)
    assert made.processor.stats["place"].errors == 1
    caplog.clear()


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_an_unknown_method(framing):
    async with served(framing=framing) as made:
        other = MethodType("other", PING.arguments, PING.result)
        with pytest.raises(UnknownMethod, match="there is no method 'other'") as raised:
            await made.client._call(other, Context(), ())
        assert raised.value.was_answered
        assert not raised.value.may_be_done


@dataclass(kw_only=True)
class Strict:
    """A result that an answer without a field is none of."""

    success: int
    thrift_spec: ClassVar[Any] = ((0, I64, "success", None, None),)
    thrift_required: ClassVar[Any] = ("success",)


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_a_value_that_does_not_fit_is_named_with_its_method(framing):
    """Of a request nothing is sent; of an answer the handler has run."""
    async with served(framing=framing) as made:
        line = replace(ORDER.lines[0], count="2")
        with pytest.raises(
            CodecError, match=r"^the request to Shop\.place: place_args\.order\.lines\[1\]\.count"
        ) as raised:
            await made.client.place(Context(), replace(ORDER, lines=[ORDER.lines[0], line]), 1)
        assert not raised.value.may_be_done
        assert made.shop.contexts == []
        strict = MethodType("ping", PING.arguments, Strict, returns=True)
        with pytest.raises(
            CodecError, match=r"^the answer of Shop\.ping: Strict\.success: the required field"
        ) as raised:
            await made.client._call(strict, Context(), ())
        assert raised.value.may_be_done
        assert made.shop.pings == 1


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_arguments_of_another_shape(framing):
    """The wrong types are skipped, as Thrift does; bytes that are no struct are an error."""
    async with served(framing=framing) as made:
        ctx = Context()
        ctx.begin(made.clock)
        packet = FRAMINGS[framing].encode_request(BINARY, COUNT, ctx, 1, made.clock(), COUNT.arguments(customer="x"))
        cut = Packet(packet.data[:-1], packet.headers)
        if framing == "frugal-v0":
            frame = decode_frame(packet.data)
            cut = Packet(encode_frame(frame.headers, frame.message[:-1]))
        answer = await made.transport.request(1, cut, 1.0)
        with pytest.raises(
            ProtocolError, match=r"the arguments of Shop\.count cannot be read: count_args: it does not end"
        ):
            FRAMINGS[framing].decode_answer(BINARY, COUNT, ctx, 1, answer)


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_sizes(framing, caplog):
    async with served(framing=framing, bytes_max=1000) as made:
        with pytest.raises(RequestTooLarge, match=r"the request to Shop\.place has 1,\d\d\d bytes, and 1,000 fit"):
            await made.client.place(Context(), replace(ORDER, data=b"x" * 950), 1)
        assert made.shop.contexts == []
        with pytest.raises(ResponseTooLarge, match="and 1,000 fit"):
            await made.client.place(Context(), ORDER, 100)
        assert len(made.shop.contexts) == 1
        with pytest.raises(RequestTooLarge):
            await made.client.ping(Context(headers={"large": "x" * 1000}))


async def test_a_value_that_does_not_fit_is_an_error_of_the_caller():
    async with served() as made:
        with pytest.raises(CodecError):
            await made.client.place(Context(), ORDER, 2**31)


class Wrong(Shop):
    async def ping(self, ctx):
        ctx.set_response_header("large", "x")
        raise TimeoutError

    async def place(self, ctx, order, copies):
        return replace(order, number="no number")

    def count(self, ctx, customer):
        return None


async def test_handlers_that_break_the_contract(caplog):
    async with served(handler=Wrong()) as made:
        for call in (
            made.client.place(Context(), ORDER, 1),
            made.client.count(Context(), "x"),
            made.client.ping(Context()),
        ):
            with pytest.raises(InternalError):
                await call
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    caplog.clear()


async def test_the_deadline_travels_and_cancels_the_handler():
    async with served() as made:
        ctx = Context(timeout_ms=300)
        ctx.begin(made.clock)
        made.clock.now_s += 0.25
        with pytest.raises(DeadlineExceeded):  # after 50 ms of the event loop's clock
            await made.client.wait_for(ctx, "never")
        (received,) = made.shop.contexts
        assert received.timeout_ms == 50
        assert received.deadline == made.clock.now_s + 0.05
        assert received.left_ms(made.clock()) == 50
        await made.shop.cancelled["never"].wait()


async def test_a_call_whose_time_is_over_is_not_sent():
    async with served() as made:
        ctx = Context(timeout_ms=100)
        ctx.begin(made.clock)
        made.clock.now_s += 1
        with pytest.raises(DeadlineExceeded, match="over before it was sent"):
            await made.client.ping(ctx)
        assert made.shop.contexts == []


async def test_a_request_whose_time_is_over_at_the_service_does_not_reach_its_handler():
    async with served() as made:
        ctx = Context(timeout_ms=100)
        request = made.processor.accept(FRUGAL.encode_request(BINARY, PING, ctx, 1, 0.0, PING.arguments()))
        made.clock.now_s += 1
        answer = await made.processor.answer(request, bytes_max=1000)
        with pytest.raises(DeadlineExceeded, match="at the service"):
            FRUGAL.decode_answer(BINARY, PING, ctx, 1, answer)
        assert made.shop.contexts == []


async def test_a_cancelled_call_cancels_its_handler():
    async with served() as made:
        task = asyncio.create_task(made.client.wait_for(Context(), "gate"))
        await made.shop.begun["gate"].wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await made.shop.cancelled["gate"].wait()


async def test_a_closed_client_fails_its_calls():
    async with served() as made:
        task = asyncio.create_task(made.client.wait_for(Context(), "gate"))
        await made.shop.begun["gate"].wait()
        await made.client.close()
        with pytest.raises(TransportClosed):
            await task
        with pytest.raises(TransportClosed):
            await made.client.ping(Context())


async def test_middleware_sees_calls_of_both_sides_in_the_order_given():
    seen = []

    def noting(name):
        async def note(ctx, call, proceed):
            seen.append((name, "in", call.side, str(call), call.arguments))
            result = await proceed(ctx, call)
            seen.append((name, "out", result))
            return result

        return note

    async def doubled(ctx, call, proceed):
        ctx.set_header("hop", "1")
        return 2 * await proceed(ctx, replace(call, arguments=(call.arguments[0] * 2,)))

    async with served(client=[noting("a"), doubled], server=[noting("b")]) as made:
        assert await made.client.count(Context(), "Ann") == 12
    assert seen == [
        ("a", "in", Side.CLIENT, "Shop.count", ("Ann",)),
        ("b", "in", Side.SERVER, "Shop.count", ("AnnAnn",)),
        ("b", "out", 6),
        ("a", "out", 12),
    ]


async def test_a_server_middleware_may_refuse_and_see_declared_exceptions():
    seen = []

    async def guard(ctx, call, proceed):
        if "token" not in ctx.headers:
            raise CallUnauthenticated("no token")
        try:
            return await proceed(ctx, call)
        except NotFound as error:
            seen.append(error.number)
            raise

    for framing in FRAMINGS:
        async with served(server=[guard], framing=framing) as made:
            with pytest.raises(CallUnauthenticated, match="no token"):
                await made.client.ping(Context())
            with pytest.raises(NotFound):
                await made.client.place(Context(headers={"token": "x"}), replace(ORDER, number=404), 1)
    assert seen == [404, 404]


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_an_error_has_the_headers_that_were_set_if_they_fit(framing):
    class Throttled(Shop):
        def count(self, ctx, customer):
            ctx.set_response_header("retry-after", "5" * int(customer))
            raise ApplicationError("too much", 430)

    async with served(handler=Throttled(), framing=framing, bytes_max=4000) as made:
        for size, wanted in (("1", {"retry-after": "5"}), ("4000", {})):
            ctx = Context(headers={})
            with pytest.raises(ApplicationError, match="too much"):
                await made.client.count(ctx, size)
            assert dict(ctx.response_headers) == wanted


async def test_a_header_that_nats_has_no_form_for_is_an_error_of_the_handler(caplog):
    class Wrong(Shop):
        async def ping(self, ctx):
            ctx.set_response_header("a b", "x")

    async with served(handler=Wrong(), framing="native") as made:
        with pytest.raises(InternalError):
            await made.client.ping(Context())
    assert "no form for the name of the header 'a b'" in caplog.text
    caplog.clear()


async def test_errors_of_a_call_that_the_handler_made_are_not_answers(caplog):
    """Else the caller would take "unknown method" of another service for one of this, and a retry for safe."""

    class Calling(Shop):
        async def ping(self, ctx):
            await made_inner.client._call(MethodType("other", PING.arguments, PING.result), ctx.copy(), ())

        def count(self, ctx, customer):
            raise ServiceNotAvailable("of another service")

        async def wait_for(self, ctx, name):
            raise DeadlineExceeded("of a call that had its own time")

    async with served() as made_inner, served(handler=Calling()) as made:
        for call in (
            made.client.ping(Context()),
            made.client.count(Context(), ""),
            made.client.wait_for(Context(), ""),
        ):
            with pytest.raises(InternalError):
                await call
    caplog.clear()


async def test_an_error_with_a_number_of_its_own():
    async def refuse(ctx, call, proceed):
        raise ApplicationError("teapot", 418)

    for framing in FRAMINGS:
        async with served(server=[refuse], framing=framing) as made:
            with pytest.raises(ApplicationError, match="teapot") as raised:
                await made.client.ping(Context())
            assert raised.value.number == 418


# What a client makes of answers


def answered(name, kind, value, *, operation_id=1):
    message = BINARY.encode(name, kind, 0, struct_spec(type(value)), value)
    return Packet(encode_frame({"_opid": str(operation_id)}, message))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (answered("count", MessageKind.REPLY, result_of(COUNT)), MissingResult),
        (answered("ping", MessageKind.REPLY, result_of(PING)), WrongMethodName),
        (answered("count", MessageKind.CALL, result_of(COUNT, success=1)), InvalidMessageType),
        (answered("count", MessageKind.REPLY, result_of(COUNT, success=1), operation_id=2), BadSequenceId),
        (Packet(b""), FrameError),
        (Packet(encode_frame({"_opid": "1"}, b"")), CodecError),
        (Packet(b"", {"Nats-Service-Error-Code": "x"}), FrameError),
    ],
)
async def test_answers_that_are_none(answer, error):
    class Fixed(LocalTransport):
        async def request(self, operation_id, packet, left_s):
            return answer

    client = ShopClient(Fixed(Processor([(SHOP, Shop())], now=Clock())), SHOP)
    with pytest.raises(error):
        await client.count(Context(), "x")


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"Nats-Service-Error-Code": "404", "Nats-Service-Error": "no"}, UnknownMethod),
        ({"Nats-Service-Error-Code": "x", "Nats-Service-Error": "no"}, ApplicationError),
        ({"Nats-Service-Error-Code": "413"}, ResponseTooLarge),
        ({"Content-Type": "text/html"}, CodecError),
        ({}, CodecError),
        ({str(number): "" for number in range(300)}, FrameError),
    ],
)
async def test_native_answers_that_are_none(headers, error):
    with pytest.raises(error):
        NATIVE.decode_answer(BINARY, COUNT, Context(), 1, Packet(b"", headers))


# What a server makes of requests


def test_a_message_that_is_no_request_is_a_frame_error():
    processor = Processor([(SHOP, Shop())], now=Clock())
    for packet in (
        Packet(b""),
        Packet(b"\0\0\0\5\0\0\0\0\0"),  # no operation id
        Packet(b"", {"Frugal-Method": "ping", **{str(number): "" for number in range(300)}}),
        Packet(b"", {"Frugal-Method": "ping", "a": "\udcff"}),
    ):
        with pytest.raises(FrameError):
            processor.accept(packet)


@pytest.mark.parametrize(
    ("packet", "error", "what"),
    [
        (Packet(encode_frame({"_opid": "1"}, b"")), ProtocolError, "ends in its header"),
        (answered("ping", MessageKind.REPLY, result_of(PING)), InvalidMessageType, "a REPLY is no request"),
    ],
)
async def test_a_frame_without_a_request_is_answered(packet, error, what):
    processor = Processor([(SHOP, Shop())], now=Clock())
    answer = await processor.answer(processor.accept(packet), bytes_max=1000)
    with pytest.raises(error, match=what):
        FRUGAL.decode_answer(BINARY, PING, Context(), 1, answer)


def test_headers_of_a_native_request_do_not_pass_for_what_frugal_says_itself():
    """A handler that passes its context on, in frugal-v0, would send the caller's `_opid` in place of its own."""
    named = {"_opid": "x", "_cid": "x", "_timeout": "1", "_topic_region": "eu", "_new": "kept"}
    request = NATIVE.decode_request(BINARY, Packet(b"\0", {"Frugal-Method": "ping", **named}))
    ctx = request.ctx.copy()
    ctx.correlation_id = "c"
    sent = decode_frame(FRUGAL.encode_request(BINARY, PING, ctx, 7, 0.0, PING.arguments()).data)
    assert sent.headers == {"_cid": "c", "_opid": "7", "_timeout": "5000", "_new": "kept"}


async def test_a_native_request_of_an_unknown_type_is_answered():
    processor = Processor([(SHOP, Shop())], now=Clock())
    packet = Packet(b"<ping/>", {"Frugal-Method": "ping", "Content-Type": "text/xml"})
    answer = await processor.answer(processor.accept(packet), bytes_max=1000)
    assert answer is not None
    assert answer.headers["Nats-Service-Error-Code"] == "400"
    with pytest.raises(ProtocolError, match="text/xml"):
        NATIVE.decode_answer(BINARY, PING, Context(), 0, answer)


async def test_a_oneway_is_not_answered_even_if_it_fails(caplog):
    class Failing(Shop):
        async def note(self, ctx, text):
            raise ValueError("no")

    processor = Processor([(SHOP, Failing())], now=Clock())
    ctx = Context()
    packet = FRUGAL.encode_request(BINARY, NOTE, ctx, 1, 0.0, NOTE.arguments(text="x"))
    assert await processor.answer(processor.accept(packet), bytes_max=1000) is None
    assert processor.stats["note"].errors == 1
    caplog.clear()


def test_a_handler_has_each_method_and_names_of_services_do_not_clash():
    class Half:
        async def ping(self, ctx): ...

    with pytest.raises(ValueError, match="Half has no method 'place', which the service Shop has"):
        Processor([(SHOP, Half())], now=Clock())
    with pytest.raises(ValueError, match="Shop and Shop have a method 'ping'"):
        Processor([(SHOP, Shop()), (SHOP, Shop())], now=Clock())


async def test_a_method_may_begin_with_an_upper_case_letter_or_be_a_word_of_python():
    class Handler:
        async def Class_(self, ctx): ...

    service = ServiceType("S", {"class": MethodType("class", PING.arguments, PING.result)})
    processor = Processor([(service, Handler())], now=Clock())
    client = ShopClient(LocalTransport(processor), service)
    await client._call(service.methods["class"], Context(), ())


async def test_native_headers_that_nats_has_no_form_for_are_refused():
    async with served(framing="native") as made:
        for ctx in (
            Context(headers={"two words": "x"}),
            Context(headers={"a(b": "x"}),
            Context(headers={"a": "x\r\nNats-Rollup: all"}),
            Context(headers={"a": " x"}),
            Context(headers={"Nats-Msg-Id": "x"}),
            Context(headers={"frugal-timeout-ms": "x"}),
            Context("a\nb"),
        ):
            with pytest.raises(CodecError, match=r"no form|cannot carry"):
                await made.client.ping(ctx)
        assert made.shop.contexts == []


def test_a_framing_has_a_name():
    with pytest.raises(ValueError, match="give one of frugal-v0, native"):
        ShopClient(LocalTransport(Processor([(SHOP, Shop())], now=Clock())), framing="grpc")


def test_place_is_described():
    assert PLACE.exceptions == {NotFound: "missing"}
