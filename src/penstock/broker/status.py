"""Adds connections, NATS link and certificates to the status that the node returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.base.ids import TimestampUs
from penstock.messages import CertificateInfo, NatsStatus, StatusResponse

if TYPE_CHECKING:
    from penstock.broker.driver import Driver


def complete_status(status: StatusResponse, driver: Driver) -> StatusResponse:
    """Return the complete status."""
    link, server = driver.link, driver.server
    nats = NatsStatus(
        state="connected" if link.is_up else "connecting",
        url=str(link.server or ""),
        server_name=link.info.server_name if link.info is not None else "",
        server_version=link.info.version if link.info is not None else "",
        embedded=driver.has_embedded_nats,
        reading_paused=driver.reading_paused,
        since_us=None if driver.link_since_us is None else TimestampUs(driver.link_since_us),
        last_error=link.last_failure,
        reconnects=driver.reconnects,
        answers_dropped=link.answers_dropped,
        complaints=driver.complained,
        last_complaint=driver.last_complaint,
        messages_skipped=driver.messages_skipped,
        unanswerable=driver.unanswerable,
        announced=tuple(map(str, link.announced)),
        gaps=status.nats.gaps,
    )
    damaged_frames = server.damaged_frames + driver.peers.damaged_frames
    return msgspec.structs.replace(
        status,
        nats=nats,
        connections=len(server.connections) - len(server.peers),
        requests_in_flight=server.open_request_count,
        tls_expires_us=None if driver.tls is None else TimestampUs(driver.tls.expires_us),
        certificates=_certificates(driver),
        counters=status.counters
        | _counted(
            damaged_frames=damaged_frames,
            failed_logins=server.failed_logins,
            unfinished_logins=server.unfinished_logins,
            delayed=server.usage.delayed,
            throttled=server.usage.throttled,
        ),
    )


def _certificates(driver: Driver) -> tuple[CertificateInfo, ...]:
    held = () if driver.tls is None else driver.tls.held
    return tuple(
        CertificateInfo(
            setting=one.setting,
            expires_us=TimestampUs(one.validity.end_us),
            last_expires_us=TimestampUs(one.last_end_us),
        )
        for one in held
    )


def _counted(**counts: int) -> dict[str, int]:
    """Return the counters above 0."""
    return {name: count for name, count in counts.items() if count}
