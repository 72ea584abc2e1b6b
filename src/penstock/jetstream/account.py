"""INFO: what the account has and may have."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.clock import Now
from penstock.jetstream.answers import json_answer
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.gateway import Gateway, Handler
from penstock.jetstream.stream_config import API_LEVEL

_LIMITS = {
    "max_memory": -1,
    "max_storage": -1,
    "max_streams": -1,
    "max_consumers": -1,
    "max_ack_pending": -1,
    "memory_max_stream_bytes": -1,
    "storage_max_stream_bytes": -1,
    "max_bytes_required": False,
}


def account_handlers(gateway: Gateway) -> Mapping[str, Handler]:
    """Return the handlers of requests about the account."""

    def account_info(call: ApiCall, subject: ApiSubject, now: Now) -> None:
        streams = gateway.streams()
        fields = {
            "memory": 0,  # sizes are known to the leaders only: STREAM.LIST asks them
            "storage": 0,
            "reserved_memory": 0,
            "reserved_storage": 0,
            "streams": len(streams),
            "consumers": sum(map(gateway.count_consumers, streams)),
            "limits": _LIMITS,
            "api": {
                "level": API_LEVEL,
                "total": gateway.requests.total() - 1,  # without this one, as nats-server
                "errors": gateway.errors.total(),
            },
        }
        if gateway.domain:
            fields["domain"] = gateway.domain
        gateway.answer(call, json_answer(subject.operation, **fields))

    return {"INFO": account_info}
