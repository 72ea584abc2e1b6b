"""Refusals by JetStream's API: HTTP-like code, error code and text, as nats-server's `server/errors.json`."""

from __future__ import annotations

from penstock.base import limits
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.metadata.image import StreamState


class ApiError(PenstockError):
    """A refused API request."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(code, err_code, description)
        self.code = code
        self.err_code = err_code
        self.description = description


def bad_request() -> ApiError:
    return ApiError(400, 10003, "bad request")


def unavailable(description: str) -> ApiError:
    """It may work in a moment: no leader, overloaded, no answer in time."""
    return ApiError(503, 10008, description)


def too_many_requests() -> ApiError:
    return unavailable("too many requests at once; ask again in a moment")


def stopping() -> ApiError:
    return unavailable("the broker is stopping; ask again in a moment")


def internal_error() -> ApiError:
    return ApiError(500, 10051, "internal error (bug) of the broker; its log has the details")


def invalid_json(text: str) -> ApiError:
    return ApiError(400, 10025, f"invalid JSON: {text}")


def not_empty() -> ApiError:
    return ApiError(400, 10038, "expected an empty request payload")


def no_message_found() -> ApiError:
    return ApiError(404, 10037, "no message found")


def invalid_config(text: str) -> ApiError:
    return ApiError(500, 10052, text)


def name_mismatch() -> ApiError:
    return ApiError(400, 10056, "stream name in subject does not match request")


def delete_failed(text: str) -> ApiError:
    return ApiError(500, 10057, text)


def name_in_use() -> ApiError:
    return ApiError(400, 10058, "stream name already in use with a different configuration")


def stream_not_found() -> ApiError:
    return ApiError(404, 10059, "stream not found")


def consumer_refusal(err_code: int, text: str, code: int = 400) -> ApiError:
    """Return one of nats-server's refusals of consumers."""
    return ApiError(code, err_code, text)


def consumer_not_found() -> ApiError:
    return ApiError(404, 10014, "consumer not found")


def delivery_cycle() -> ApiError:
    return ApiError(400, 10081, "consumer deliver subject forms a cycle")


def subjects_overlap() -> ApiError:
    return ApiError(400, 10065, "subjects overlap with an existing stream")


def too_many_replicas(brokers: int) -> ApiError:
    if brokers == 1:
        return ApiError(500, 10074, "replicas > 1 not supported in non-clustered mode")
    return ApiError(400, 10005, "no suitable peers for placement")


def sealed() -> ApiError:
    return ApiError(400, 10109, "invalid operation on sealed stream")


def several_partitions(name: str, count: int, names: str) -> ApiError:
    """Refusal to read a stream of several partitions, which are read under `names`: there is no single sequence."""
    text = f"stream {name} has {count} partitions, each with an order of its own"
    return ApiError(400, 10052, f"{text}; read them as the streams {names}")


def no_removal_from_several(name: str, count: int, command: str) -> ApiError:
    """Refusal to remove messages from a stream of several partitions, whose streams can only be read."""
    text = f"stream {name} has {count} partitions, each with an order of its own"
    return ApiError(400, 10052, f"{text}; use `penstock stream {command}`")


def unreadable(state: StreamState) -> ApiError | None:
    """Return the refusal to read a stream whose messages are not to be sent over NATS; None: it may be read."""
    config, name = state.config, state.name
    if config.is_nats_readable:
        return None
    why = f"stream {name} is encrypted" if config.is_encrypted else f"stream {name} has --nats-readable no"
    text = f"{why}: its messages are not sent over NATS, where they would be in clear"
    return not_allowed(f"{text}; read it with Penstock's own client, or alter it with --nats-readable yes")


def too_many_rules(count: int) -> ApiError:
    """Refusal to read all of a stream for a user who may read very many subjects of it."""
    text = f"the API's user may read {count} subjects of this stream, and {limits.FETCH_SUBJECTS_MAX} are read at once"
    return not_allowed(f"{text}; name some of them")


NOT_SERVED = {
    "STREAM.SNAPSHOT": "use `penstock backup`",
    "STREAM.RESTORE": "use `penstock restore`",
    "STREAM.LEADER.STEPDOWN": "brokers choose the leaders of streams by themselves",
    "STREAM.PEER.REMOVE": "brokers choose the replicas of streams by themselves",
    "STREAM.PEER.EVACUATE": "brokers choose the replicas of streams by themselves",
    "STREAM.CANCEL_MOVE": "brokers choose the replicas of streams by themselves",
    "CONSUMER.LEADER.STEPDOWN": "a consumer is at the leader of its stream",
    "META.LEADER.STEPDOWN": "brokers elect the metadata leader by themselves",
    "SERVER.REMOVE": "stop the broker, and see `penstock status`",
    "ACCOUNT.PURGE": "delete the streams one by one",
    "ACCOUNT.STREAM.MOVE": "brokers choose the replicas of streams by themselves",
    "ACCOUNT.STREAM.CANCEL_MOVE": "brokers choose the replicas of streams by themselves",
}
"""Operations of JetStream that are refused, with what to do instead."""


def not_served(operation: str, instead: str) -> ApiError:
    """Refuse an operation that JetStream has, and Penstock has not."""
    return ApiError(501, 10003, f"{operation} is not served by Penstock: {instead}")


def not_allowed(text: str) -> ApiError:
    return ApiError(403, 10003, text)


def api_error(error: RemoteError) -> ApiError:
    """Return the refusal for one of the node's."""
    match error.code:
        case ErrorCode.STREAM_NOT_FOUND | ErrorCode.STREAM_CHANGED:
            return stream_not_found()
        case ErrorCode.STREAM_EXISTS:
            return name_in_use()
        case ErrorCode.SUBJECTS_OVERLAP:
            return subjects_overlap()
        case ErrorCode.INVALID_CONFIG | ErrorCode.NATS_REFUSED | ErrorCode.UNSUPPORTED_VERSION:
            return invalid_config(error.message)
        case ErrorCode.NOT_ENOUGH_REPLICAS:
            brokers = error.details.get("brokers")
            return too_many_replicas(brokers if isinstance(brokers, int) else 0)
        case ErrorCode.QUOTA_EXCEEDED | ErrorCode.TOO_LARGE:
            return ApiError(400, 10027, error.message)
        case ErrorCode.NOT_AUTHORIZED | ErrorCode.UNAUTHENTICATED:
            return not_allowed(error.message)
        case ErrorCode.BAD_REQUEST:
            return ApiError(400, 10003, error.message)
        case ErrorCode.INTERNAL:
            return ApiError(500, 10051, error.message)
        case ErrorCode.READ_ONLY:
            return ApiError(400, 10109, error.message)
        case _:
            return unavailable(error.message)
