"""What is said if no NATS server answers."""

from __future__ import annotations

from penstock.client.publish.publishing import not_connected


def test_the_port_of_a_broker_is_recognised() -> None:
    assert not_connected("nats://a:4222", "") == "no NATS server answers at nats://a:4222 in time"
    assert "usually a broker's port" in not_connected("nats://a:7422", "")
