"""Quotas of users on this broker: bytes per second that they append and fetch.

Rules: a token bucket for each user and kind, which fills with its rate and holds one second's worth. A request takes
its bytes out, below zero if need be: so one request may be of any size, and requests that come before the bucket has
filled again are refused with `throttled`, which has the time to wait. The previous answer had it already
(`throttle_ms`): a client that waits that long is not refused. A refused request has no effect, and keeps no state. A
fetch that has waited (long poll) is checked once more when its answer is ready, so that many waiting fetches get no
more than one. Bytes scanned in a search count even if nothing is found, and are never scanned for nothing: the result
is returned even if the rate is used up by then. Administrators' requests count like all others; brokers have no quota.
A user without a quota costs one look-up. A full bucket is dropped, so that deleted users leave no state; a new user of
the same name has a new bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from penstock.access import Quotas as Limits
from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    API_OF_REQUEST,
    AppendResponse,
    FetchResponse,
    GetResponse,
    QuotaKind,
    Request,
    Response,
)

R = TypeVar("R", bound=Response)


class _Bucket:
    __slots__ = ("level", "rate", "seen_us")

    def __init__(self, rate: int, now_us: int) -> None:
        self.rate = rate
        self.level = float(rate)  # bytes; below 0: overdrawn
        self.seen_us = now_us

    def fill(self, rate: int, now_us: int) -> None:
        """Fill the bucket for the time passed, with a rate that may have changed."""
        self.rate = rate
        self.level = min(float(rate), self.level + rate * (now_us - self.seen_us) / 1e6)
        self.seen_us = now_us

    @property
    def wait_ms(self) -> int:
        """Milliseconds until the level is 0 again."""
        return 0 if self.level >= 0 else min(limits.THROTTLE_MS_MAX, int(-self.level * 1_000 / self.rate) + 1)


class Usage:
    """Recent use by each user. `limits_of` returns a user's quota; None: unlimited."""

    def __init__(self, limits_of: Callable[[Principal], Limits | None], elapsed_us: Callable[[], int]) -> None:
        self.throttled = 0  # requests that were refused
        self.delayed = 0  # answers that told the client to wait
        self._limits_of = limits_of
        self._elapsed_us = elapsed_us
        self._buckets: dict[tuple[str, int, QuotaKind], _Bucket] = {}

    def _bucket(self, who: Principal, kind: QuotaKind) -> _Bucket | None:
        if (allowed := self._limits_of(who)) is None:
            return None
        rate = allowed.append_bytes_per_s if kind is QuotaKind.APPEND else allowed.fetch_bytes_per_s
        key = (who.name, who.made_index, kind)
        if rate is None:
            self._buckets.pop(key, None)
            return None
        now_us = self._elapsed_us()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(rate, now_us)
        bucket.fill(rate, now_us)
        return bucket

    @property
    def kept(self) -> int:
        """Number of buckets."""
        return len(self._buckets)

    def sweep(self) -> None:
        """Drop full buckets, which are the same as new ones."""
        now_us = self._elapsed_us()
        for key, bucket in list(self._buckets.items()):
            bucket.fill(bucket.rate, now_us)
            if bucket.level >= bucket.rate:
                del self._buckets[key]

    def asked(self, who: Principal, request: Request, raw_bytes: int) -> RemoteError | None:
        """Account a user's request of `raw_bytes`; return why it is refused, or None."""
        kind = API_OF_REQUEST[type(request)].quota
        bucket = None if kind is None else self._bucket(who, kind)
        if kind is None or bucket is None:
            return None
        if bucket.wait_ms:
            return self._refusal(who, kind, bucket)
        if kind is QuotaKind.APPEND:
            bucket.level -= raw_bytes
        return None

    def _refusal(self, who: Principal, kind: QuotaKind, bucket: _Bucket) -> RemoteError:
        self.throttled += 1
        wait_ms = bucket.wait_ms
        text = f"user {who.name!r} is over its {kind.value} rate of {bucket.rate} bytes/s; wait for {wait_ms} ms"
        return RemoteError(ErrorCode.THROTTLED, text, throttle_ms=wait_ms, rate=bucket.rate)

    def looked(self, who: Principal, nbytes: int) -> None:
        """Account bytes scanned for a user without a result."""
        if nbytes and (bucket := self._bucket(who, QuotaKind.FETCH)) is not None:
            bucket.level -= nbytes

    def answered(self, who: Principal, response: R, nbytes: int, looked_bytes: int = 0) -> R | RemoteError:
        """Account an answer of `nbytes` for which `looked_bytes` were scanned; return it, with the time to wait if over
        the rate.

        Return an error instead if a fetch that waited may bring nothing, since others have used up the rate meanwhile.
        """
        if isinstance(response, AppendResponse):
            bucket = self._bucket(who, QuotaKind.APPEND)
        elif isinstance(response, FetchResponse | GetResponse):
            bucket = self._bucket(who, QuotaKind.FETCH)
            if bucket is not None:
                if nbytes and not looked_bytes and bucket.wait_ms:
                    return self._refusal(who, QuotaKind.FETCH, bucket)
                bucket.level -= max(nbytes, looked_bytes)
        else:
            return response
        if bucket is None or not (wait_ms := bucket.wait_ms):
            return response
        self.delayed += 1
        return msgspec.structs.replace(response, throttle_ms=wait_ms)
