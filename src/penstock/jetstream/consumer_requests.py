"""Requests of the socket API about consumers: answered by what answers JetStream's API.

Rules: a user is allowed by the consumer's name (`Authorization`), whatever the API's user may do; but a consumer reads
as the API's user, whichever user made it, so a new one needs the rights of both. A push consumer is made over NATS
only: its messages go to a subject as the broker publishes them, with more rights on NATS than the user may have; but an
administrator may restore one. The leader answers. An `ApiError` becomes an error of the socket API, with JetStream's
code in its details.

| operation | JetStream's              |
|-----------|--------------------------|
| `list`    | CONSUMER.LIST            |
| `info`    | CONSUMER.INFO            |
| `create`  | CONSUMER.CREATE          |
| `pause`   | CONSUMER.PAUSE, then INFO |
| `reset`   | CONSUMER.RESET           |
| `delete`  | CONSUMER.DELETE          |
| `export`  | none: CONSUMER.EXPORT is asked inside only |
| `export_all` | none: CONSUMER.EXPORTS is asked inside only |
| `restore` | none: CONSUMER.RESTORE is asked inside only |
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Answered, Asked, Conversation
from penstock.jetstream.errors import ApiError, invalid_config
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.partition_streams import real_ids
from penstock.jetstream.readers.config.checks import is_name
from penstock.jetstream.readers.config.fields import DEAD_LETTERS
from penstock.jetstream.readers.stored.dead_letters import check_letter_rights
from penstock.jetstream.stream_config import json_object
from penstock.jetstream.stream_state import api_time
from penstock.messages import AskConsumersRequest, AskConsumersResponse, ConsumerOperation, FetchRequest
from penstock.metadata.image import StreamState
from penstock.metadata.partition_names import partition_name
from penstock.node.partition.leader_hints import not_leader
from penstock.node.security.access import Call

_CODES = {
    10014: ErrorCode.CONSUMER_NOT_FOUND,
    10013: ErrorCode.CONSUMER_EXISTS,
    10148: ErrorCode.CONSUMER_EXISTS,
    10026: ErrorCode.OVERLOADED,
    10059: ErrorCode.STREAM_CHANGED,
    10008: ErrorCode.NOT_YET,
    10051: ErrorCode.INTERNAL,
}
"""Error codes of JetStream's API that are more than a mistake in the request."""
_Infos = Generator[Asked, list[Answered], list[dict[str, Any]]]
_Page = Generator[Asked, list[Answered], tuple[AskConsumersResponse, list[dict[str, Any]]]]
_encode = msgspec.json.Encoder().encode


def ask_consumers(gateway: Gateway, call: Call) -> None:
    """Answer an authorised request for consumers, now or later."""
    request = call.request
    assert isinstance(request, AskConsumersRequest)
    outbox = gateway.node.outbox
    if len(call.raw) > limits.CONSUMER_ROW_BYTES_MAX:
        text = f"the state of a consumer has {len(call.raw):,} bytes; the limit is {limits.CONSUMER_ROW_BYTES_MAX:,}"
        outbox.reply(call.caller, RemoteError(ErrorCode.TOO_LARGE, text))
        return
    call = call._replace(raw=bytes(call.raw))  # it may be part of a large read buffer

    def end(answer: bytes | ApiError) -> None:
        if isinstance(answer, ApiError):
            outbox.reply(call.caller, _remote_error(answer))
            return
        response, infos = msgspec.json.decode(answer, type=tuple[AskConsumersResponse, msgspec.Raw])
        try:
            call.authorize()  # rights may have changed meanwhile
        except RemoteError as refusal:
            outbox.reply(call.caller, refusal)
            return
        outbox.reply(call.caller, response, bytes(infos))

    try:
        state, name = _led(gateway, request)
        seen = _seen(gateway, request, state, name)
        conversation = _steps(gateway, call, request, state, name if seen else "")
    except RemoteError as refusal:
        outbox.reply(call.caller, refusal)
        return
    gateway.conversations.begin(end, call.now, conversation)


def _led(gateway: Gateway, request: AskConsumersRequest) -> tuple[StreamState, str]:
    """Return the stream, and the name of its partition in JetStream's API. Raise RemoteError unless it is led here."""
    node = gateway.node
    state = node.image.by_id(request.stream_id)
    count, number = len(state.partitions), request.partition
    if number >= count:
        text = f"stream {state.name!r} has {count} partitions, counted from 0; there is no partition {number}"
        raise RemoteError(ErrorCode.BAD_REQUEST, text)
    if state.partitions[number].leader != node.broker_id:
        raise not_leader(node.image, state, number)
    if node.shown(state.stream_id, PartitionId(number)) is None:
        raise RemoteError(ErrorCode.NOT_YET, f"partition {number} of {state.name!r} is being opened; ask again")
    return state, state.name if count == 1 else partition_name(state.name, number)


def _seen(gateway: Gateway, request: AskConsumersRequest, state: StreamState, name: str) -> bool:
    """True if JetStream's API shows the partition: else it has no consumers. Raise RemoteError if one is named."""
    found = gateway.stream(name)
    if found is not None and real_ids(found.stream_id)[0] == state.stream_id:
        return True
    if request.operation in (ConsumerOperation.LIST, ConsumerOperation.EXPORT_ALL):
        return False
    if state.config.is_internal:
        raise RemoteError(ErrorCode.BAD_REQUEST, f"{state.name!r} is a stream of Penstock's own, without consumers")
    if found is not None:
        text = f"partition {request.partition} of {state.name!r} is hidden in JetStream's API by the stream {name!r}"
        raise RemoteError(ErrorCode.BAD_REQUEST, f"{text}, which has its name: rename one of them")
    if (refusal := gateway.reading_refusal(None)) is not None:
        raise _remote_error(refusal)
    text = f"the user of JetStream's API, {gateway.rights.user!r}, may not see stream {state.name!r}"
    advice = f"allow it with: penstock acl add {gateway.rights.user} read --stream {state.name}"
    raise RemoteError(ErrorCode.NOT_AUTHORIZED, f"{text}, so it has no consumers there; {advice}")


def _steps(gateway: Gateway, call: Call, request: AskConsumersRequest, state: StreamState, name: str) -> Conversation:
    """Return JSON: the response, and infos. Raise ApiError, RemoteError. `name` is empty if hidden."""
    response = AskConsumersResponse()
    match request.operation:
        case ConsumerOperation.LIST:
            response, infos = yield from _list(gateway, call, request, state, name)
        case ConsumerOperation.EXPORT_ALL:
            response, infos = yield from _exports(gateway, call, request, state, name)
        case ConsumerOperation.INFO:
            infos = yield from _asked(gateway, call, name, "CONSUMER.INFO", request.consumer)
        case ConsumerOperation.CREATE:
            config = _checked_config(gateway, call, request, state)
            body = {"stream_name": name, "config": config, "action": "create"}
            infos = yield from _asked(gateway, call, name, "CONSUMER.CREATE", request.consumer, body)
        case ConsumerOperation.EXPORT:
            infos = yield from _asked(gateway, call, name, "CONSUMER.EXPORT", request.consumer)
        case ConsumerOperation.RESTORE:
            config = _checked_config(gateway, call, request, state)
            carried = {
                "config": {**config, "name": request.consumer},
                "offset": request.next_offset or 0,
                "deliveries": request.deliveries,
                "since": request.since,
                "state": call.raw,
            }
            infos = yield from _asked(gateway, call, name, "CONSUMER.RESTORE", request.consumer, carried)
        case ConsumerOperation.PAUSE:
            until = {} if request.until_us is None else {"pause_until": api_time(request.until_us)}
            yield from _asked(gateway, call, name, "CONSUMER.PAUSE", request.consumer, until)
            infos = yield from _asked(gateway, call, name, "CONSUMER.INFO", request.consumer)
        case ConsumerOperation.RESET:
            to = {} if request.next_offset is None else {"seq": request.next_offset + 1}
            infos = yield from _asked(gateway, call, name, "CONSUMER.RESET", request.consumer, to)
        case ConsumerOperation.DELETE:
            yield from _asked(gateway, call, name, "CONSUMER.DELETE", request.consumer)
            infos = []
    return _encode((response, infos))


def _asked(
    gateway: Gateway, call: Call, name: str, operation: str, consumer: str, body: dict[str, Any] | None = None
) -> _Infos:
    """Ask as JetStream's API, and return its answer without its type."""
    subject = ApiSubject("", operation, name, consumer)
    asked = ApiCall(
        f"{operation}.{name}.{consumer}",
        b"",
        None,
        b"" if body is None else _encode(body),
        received_us=call.now.wall_us,
    )
    answer = yield from gateway.talks[operation](asked, subject, call.now)
    found: dict[str, Any] = msgspec.json.decode(answer)
    found.pop("type", None)
    return [found]


def _list(gateway: Gateway, call: Call, request: AskConsumersRequest, state: StreamState, name: str) -> _Page:
    """Return the infos of a page that the caller may see."""
    if not name:
        return AskConsumersResponse(), []
    (page,) = yield from _asked(gateway, call, name, "CONSUMER.LIST", "", {"offset": request.skip})
    end = page["offset"] + page["limit"]
    seen = [one for one in page["consumers"] if call.auth.may_see_consumer(state, one["name"])]
    return AskConsumersResponse(skip_next=end if end < page["total"] else None), seen


def _exports(gateway: Gateway, call: Call, request: AskConsumersRequest, state: StreamState, name: str) -> _Page:
    """Return the exports of a page that the caller may see."""
    if not name:
        return AskConsumersResponse(), []
    after: str | None = request.consumer
    seen: list[dict[str, Any]] = []
    while after is not None and not seen:
        (page,) = yield from _asked(gateway, call, name, "CONSUMER.EXPORTS", after)
        seen = [one for one in page["exports"] if call.auth.may_see_consumer(state, one["name"])]
        after = page["after_next"]
    # The next page begins behind one that the caller may see: the names of others are not told.
    return AskConsumersResponse(after_next=None if after is None else seen[-1]["name"]), seen


def _checked_config(gateway: Gateway, call: Call, request: AskConsumersRequest, state: StreamState) -> dict[str, Any]:
    """Return the config of a new consumer, whose user must have the right to read what it reads. Raise RemoteError."""
    if not is_name(request.consumer):
        raise RemoteError(ErrorCode.BAD_REQUEST, f"{request.consumer!r} is no name of a consumer: give one token")
    if (refusal := gateway.reading_refusal(state)) is not None:
        raise refusal
    config = json_object(request.config.encode() or b"{}", "ConsumerConfig")
    if config.get("deliver_subject"):
        if request.operation is ConsumerOperation.CREATE:
            raise invalid_config("deliver_subject: a push consumer is created over NATS only, with the rights there")
        call.auth.need_admin()
    single, several = config.get("filter_subject"), config.get("filter_subjects")
    filters = [single] if single else several or None
    if filters is not None and not (isinstance(filters, list) and all(isinstance(one, str) for one in filters)):
        raise invalid_config("filter_subjects: give a list of subjects")
    subjects = None if filters is None else tuple(filters)
    call.auth.check(FetchRequest(stream_id=state.stream_id, offset=Offset(0), subjects=subjects))
    target = (config.get("metadata") or {}).get(DEAD_LETTERS) if isinstance(config.get("metadata"), dict) else None
    if isinstance(target, str) and target in gateway.node.image.names:
        check_letter_rights(call.auth, gateway.node.image.by_name(target), "you")
    return config


def _remote_error(error: ApiError) -> RemoteError:
    code = _CODES.get(error.err_code)
    if code is None:
        code = ErrorCode.NOT_AUTHORIZED if error.code == 403 else ErrorCode.BAD_REQUEST
    return RemoteError(code, error.description, err_code=error.err_code)
