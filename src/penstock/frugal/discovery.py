"""Answers of a server to NATS's service discovery (ADR-32): `nats micro ls`, `nats micro info`, `nats micro stats`.

| request                          | answer                                                            |
|----------------------------------|-------------------------------------------------------------------|
| `$SRV.PING[.<name>[.<id>]]`      | `io.nats.micro.v1.ping_response`: name, id, version, metadata      |
| `$SRV.INFO[.<name>[.<id>]]`      | `io.nats.micro.v1.info_response`: description, endpoints           |
| `$SRV.STATS[.<name>[.<id>]]`     | `io.nats.micro.v1.stats_response`: counters of each endpoint       |

An endpoint is a method: all have the subject and queue group of the server. Its metadata have the codec, and what the
contract says of it. No network here; names are NATS's: letters, digits, `-` and `_`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.frugal.contracts import ServiceType
from penstock.frugal.processor import MethodStats

PREFIX = "$SRV"
_TYPE = "io.nats.micro.v1."
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a server in its answers. ValueError: an invalid name of NATS, or no semantic version."""

    name: str
    id: str
    version: str
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("id", self.id)):
            if not _NAME.fullmatch(text):
                raise ValueError(f"the {what} of a service is {text!r}; it has letters, digits, - and _ only")
        if not _VERSION.fullmatch(self.version):
            raise ValueError(f"the version of a service is {self.version!r}; give one like 1.2.3")


class Discovery:
    """The answers of one server. `subjects`: those of its requests. `started`: when it began, as RFC 3339 says."""

    def __init__(
        self,
        identity: Identity,
        services: Sequence[ServiceType],
        *,
        subjects: Sequence[str],
        queue: str,
        codec: str,
        started: str,
    ) -> None:
        self._identity = identity
        self._services = services
        self._subjects = subjects
        self._queue = queue
        self._codec = codec
        self._started = started

    def requests(self) -> Sequence[tuple[str, str]]:
        """Return the subjects that ask, each with its verb."""
        name, own_id = self._identity.name, self._identity.id
        return [
            (f"{PREFIX}.{verb}{tail}", verb)
            for verb in ("PING", "INFO", "STATS")
            for tail in ("", f".{name}", f".{name}.{own_id}")
        ]

    def answer(self, verb: str, stats: Mapping[str, MethodStats]) -> bytes:
        """Return the JSON that answers PING, INFO or STATS."""
        said: dict[str, Any] = {
            "type": f"{_TYPE}{verb.lower()}_response",
            "name": self._identity.name,
            "id": self._identity.id,
            "version": self._identity.version,
            "metadata": dict(self._identity.metadata),
        }
        if verb == "INFO":
            said |= {"description": self._identity.description, "endpoints": self._endpoints()}
        elif verb == "STATS":
            said |= {"started": self._started, "endpoints": self._counted(stats)}
        return json.dumps(said).encode()

    def _endpoints(self) -> list[dict[str, Any]]:
        return [
            {
                "name": method.name,
                "subject": subject,
                "queue_group": self._queue,
                "metadata": {
                    "service": service.name,
                    "codec": self._codec,
                    "framing": "frugal-v0, native",
                    "oneway": str(method.is_oneway).lower(),
                    **method.annotations,
                },
            }
            for service in self._services
            for method in service.methods.values()
            for subject in self._subjects
        ]

    def _counted(self, stats: Mapping[str, MethodStats]) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "subject": self._subjects[0],
                "queue_group": self._queue,
                "num_requests": each.requests,
                "num_errors": each.errors,
                "last_error": each.last_error,
                "processing_time": round(each.busy_s * 1e9),
                "average_processing_time": round(each.busy_s * 1e9 / each.requests) if each.requests else 0,
                "data": None,  # nats-py wants it
            }
            for name, each in stats.items()
        ]
