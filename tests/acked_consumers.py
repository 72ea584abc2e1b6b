"""Which systems serve consumers with acks: tests of such consumers run against each of them."""

from __future__ import annotations

import pytest

from tests.conformance.servers import System

ARE_SERVED = True
"""True once Penstock serves consumers with acks: durable ones, and ack policies explicit and all."""
NOT_SERVED = "Penstock does not serve consumers with acks yet"

SYSTEMS = (
    System.NATS_SERVER,
    pytest.param(System.PENSTOCK, marks=pytest.mark.skipif(not ARE_SERVED, reason=NOT_SERVED)),
)
"""Parameters of a test: what answers JetStream's API."""
