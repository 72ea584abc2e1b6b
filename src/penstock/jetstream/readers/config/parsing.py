"""Parsing of requests to create or update a consumer: JSON, the types of fields, and times of RFC 3339."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.jetstream.errors import ApiError, invalid_json, name_mismatch
from penstock.jetstream.readers.config.fields import BY_NAME
from penstock.jetstream.stream_config import Config, json_object, typed
from penstock.jetstream.stream_state import api_time

_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)")
_ACTIONS = ("", "create", "update")


class ConsumerRequest(NamedTuple):
    """A request to create or update a consumer."""

    config: Config
    action: str
    is_pedantic: bool


def parsed_request(payload: bytes, stream: str) -> ConsumerRequest:
    """Return a request as it was given. Raise ApiError for what is none."""
    found = json_object(payload, "CreateConsumerRequest") if payload.strip() else {}
    for name in found:
        if name not in ("stream_name", "config", "action", "pedantic"):
            raise invalid_json(f'json: unknown field "{name[:64]}"')
    action, is_pedantic = found.get("action") or "", found.get("pedantic") or False
    if action not in _ACTIONS or not isinstance(action, str) or not isinstance(is_pedantic, bool):
        raise invalid_json("json: `action` is none of create and update, or `pedantic` is no bool")
    given = found.get("config")
    if not isinstance(given, dict | None):
        raise invalid_json("json: cannot unmarshal config into Go value of type server.ConsumerConfig")
    config: Config = {}
    for name, value in (given or {}).items():
        field = BY_NAME.get(name)
        if field is None:
            raise invalid_json(f'json: unknown field "{name[:64]}"')
        try:
            config[name] = typed(field, value)
        except ApiError as error:
            where = error.description.replace("StreamConfigRequest.", "CreateConsumerRequest.config.")
            raise ApiError(error.code, error.err_code, where) from None
    for name in ("opt_start_time", "pause_until"):
        if config.get(name):
            parsed_time_us(config[name])
    if found.get("stream_name") != stream:
        raise name_mismatch()
    return ConsumerRequest(config, action, is_pedantic)


def parsed_time_us(text: str) -> int:
    """Return a time of RFC 3339 in µs, rounded up: the first message at or after it is the same. ApiError (10025)."""
    return -(-_parsed_time_ns(text) // 1_000)


def told_time(text: str) -> str:
    """Return a time of RFC 3339 as it is told, in UTC, with its nanoseconds. ApiError (10025)."""
    whole_s, rest_ns = divmod(_parsed_time_ns(text), 1_000_000_000)
    fraction = f".{rest_ns:09}".rstrip("0") if rest_ns else ""
    return f"{api_time(whole_s * 1_000_000)[:-1]}{fraction}Z"


def _parsed_time_ns(text: str) -> int:
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError(text)
        moment = datetime.fromisoformat(f"{found[1].upper()}{'+00:00' if found[3] in 'Zz' else found[3]}")
        whole_s = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except (ValueError, OverflowError):
        layout = "2006-01-02T15:04:05Z07:00"
        raise invalid_json(f'parsing time "{text[:64]}" as "{layout}": cannot parse "{text[:64]}" as "2006"') from None
    return int(whole_s) * 1_000_000_000 + int((found[2] or "0").ljust(9, "0"))
