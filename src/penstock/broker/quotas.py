"""What users may use of this broker: bytes a second that they append and fetch, and connections.

Rules: each user has a bucket for each kind, which fills with its rate and holds what a second gives. What is taken is
taken out of it, below nothing if need be: so one request may be as large as any, and those that come until the bucket
has filled again are refused with `throttled`, which says how long that takes. The answer to the one before has said so
already (`throttle_ms`): who waits so long is not refused. Nothing of one that is refused was done, and nothing is held
for it. A fetch that has waited is looked at once more when its answer is there: many that wait bring no more than one.
What was looked through to find something counts, whether it was found or not, and is never done for nothing: it is
told also where the rate is used up by then.
Brokers and administrators' rates count like anybody's; who has no quota costs a look. A bucket that is full is
forgotten, so of those who were deleted nothing stays; and one who is made anew under that name has another.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

import msgspec

from penstock.access import Quotas as Limits
from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    AppendAtRequest,
    AppendOnceRequest,
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
    GetRequest,
    GetResponse,
    Request,
    Response,
    StageRequest,
)

R = TypeVar("R", bound=Response)


class Kind(Enum):
    """What is counted."""

    APPEND = "append"
    FETCH = "fetch"


_KINDS: dict[type[Request], Kind] = {
    AppendRequest: Kind.APPEND,
    AppendOnceRequest: Kind.APPEND,
    AppendAtRequest: Kind.APPEND,
    StageRequest: Kind.APPEND,
    FetchRequest: Kind.FETCH,
    GetRequest: Kind.FETCH,
}


class _Bucket:
    __slots__ = ("level", "rate", "seen_us")

    def __init__(self, rate: int, now_us: int) -> None:
        self.rate = rate
        self.level = float(rate)  # bytes; below 0: as many too many
        self.seen_us = now_us

    def fill(self, rate: int, now_us: int) -> None:
        """Time has passed; the rate may be another one."""
        self.rate = rate
        self.level = min(float(rate), self.level + rate * (now_us - self.seen_us) / 1e6)
        self.seen_us = now_us

    @property
    def wait_ms(self) -> int:
        """How long until it is empty, and not emptier."""
        return 0 if self.level >= 0 else min(limits.THROTTLE_MS_MAX, int(-self.level * 1_000 / self.rate) + 1)


class Usage:
    """What each user has used lately. `limits_of` gives what a user may; None: all."""

    def __init__(self, limits_of: Callable[[Principal], Limits | None], elapsed_us: Callable[[], int]) -> None:
        self.throttled = 0  # requests that were refused
        self.delayed = 0  # answers that had their user wait
        self._limits_of = limits_of
        self._elapsed_us = elapsed_us
        self._buckets: dict[tuple[str, int, Kind], _Bucket] = {}

    def _bucket(self, who: Principal, kind: Kind) -> _Bucket | None:
        if (allowed := self._limits_of(who)) is None:
            return None
        rate = allowed.append_bytes_per_s if kind is Kind.APPEND else allowed.fetch_bytes_per_s
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
        """How many buckets there are."""
        return len(self._buckets)

    def sweep(self) -> None:
        """Forget those that are full: a new one is."""
        now_us = self._elapsed_us()
        for key, bucket in list(self._buckets.items()):
            bucket.fill(bucket.rate, now_us)
            if bucket.level >= bucket.rate:
                del self._buckets[key]

    def asked(self, who: Principal, request: Request, raw_bytes: int) -> RemoteError | None:
        """A user asks, with so many bytes; why nothing is taken of it now, None if it is."""
        kind = _KINDS.get(type(request))
        bucket = None if kind is None else self._bucket(who, kind)
        if kind is None or bucket is None:
            return None
        if bucket.wait_ms:
            return self._refusal(who, kind, bucket)
        if kind is Kind.APPEND:
            bucket.level -= raw_bytes
        return None

    def _refusal(self, who: Principal, kind: Kind, bucket: _Bucket) -> RemoteError:
        self.throttled += 1
        wait_ms = bucket.wait_ms
        text = f"user {who.name!r} is over its {kind.value} rate of {bucket.rate} bytes/s; wait for {wait_ms} ms"
        return RemoteError(ErrorCode.THROTTLED, text, throttle_ms=wait_ms, rate=bucket.rate)

    def looked(self, who: Principal, nbytes: int) -> None:
        """So much was looked through for a user, and nothing found."""
        if nbytes and (bucket := self._bucket(who, Kind.FETCH)) is not None:
            bucket.level -= nbytes

    def answered(self, who: Principal, response: R, nbytes: int, looked_bytes: int = 0) -> R | RemoteError:
        """The answer, which says how long the user is to wait where it is over a rate; `nbytes`: what it brings,
        `looked_bytes`: what was looked through for it. Or why what has waited brings nothing: others have used up the
        rate meanwhile.
        """
        if isinstance(response, AppendResponse):
            bucket = self._bucket(who, Kind.APPEND)
        elif isinstance(response, FetchResponse | GetResponse):
            bucket = self._bucket(who, Kind.FETCH)
            if bucket is not None:
                if nbytes and not looked_bytes and bucket.wait_ms:
                    return self._refusal(who, Kind.FETCH, bucket)
                bucket.level -= max(nbytes, looked_bytes)
        else:
            return response
        if bucket is None or not (wait_ms := bucket.wait_ms):
            return response
        self.delayed += 1
        return msgspec.structs.replace(response, throttle_ms=wait_ms)
