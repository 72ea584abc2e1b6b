"""How much of an outage of NATS the log tells."""

from __future__ import annotations

from penstock.base import limits
from penstock.broker.nats.reconnecting import NatsFailureLog
from penstock.broker.security.nats_credentials import parse_nats_urls

ONE, OTHER = parse_nats_urls("nats://a:1,nats://b:1")
MINUTE_MS = limits.NATS_OUTAGE_LOG_MS


def test_news_is_told_at_once_and_the_rest_once_a_minute() -> None:
    failures = NatsFailureLog()
    assert failures.line(ONE, "refused", 5) == "no connection to nats://a:1: refused"
    assert failures.line(OTHER, "refused", 6) == "no connection to nats://b:1: refused (tried 2 times so far)"
    assert failures.line(ONE, "no answer", 7) == "no connection to nats://a:1: no answer (tried 3 times so far)"
    for now_ms in range(8, MINUTE_MS, 1_000):
        assert failures.line(ONE, "refused", now_ms) is None
        assert failures.line(OTHER, "refused", now_ms) is None
    count = 3 + 2 * len(range(8, MINUTE_MS, 1_000)) + 1
    text = failures.line(OTHER, "refused", MINUTE_MS + 7)
    assert text == f"no connection to nats://b:1: refused (tried {count} times so far)"
    assert failures.line(ONE, "refused", MINUTE_MS + 8) is None
    failures.over()
    assert failures.line(ONE, "refused", MINUTE_MS + 9) == "no connection to nats://a:1: refused"


def test_a_server_with_ever_new_reasons_does_not_flood_the_log() -> None:
    failures = NatsFailureLog()
    told = [failures.line(ONE, f"reason {number}", number) for number in range(1_000)]
    assert sum(text is not None for text in told) < 20
    assert failures.line(ONE, "reason 7", 2 * MINUTE_MS) is not None
