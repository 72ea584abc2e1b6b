"""Decisions that are due by the reports of brokers on JetStream's API."""

from __future__ import annotations

import pytest

from penstock.base.clock import Now
from penstock.base.ids import BrokerId
from penstock.metadata.api_decisions import ApiDecision, ApiState
from penstock.metadata.controller.api_reports import ApiReports
from penstock.metadata.image import ClusterImage


@pytest.mark.parametrize("state", [ApiState.WAITING, ApiState.TAKEN, ApiState.WITHDRAWN])
def test_nothing_is_decided_while_no_broker_is_live(state: ApiState) -> None:
    """As all are started again: a setting that holds a prefix back would be forgotten."""
    decision = ApiDecision("$JS.API.", state, 7, 7, 1, held_back_by=(BrokerId(2),))
    image = ClusterImage(index=9, feature_level=(0, 4), apis=(decision,))
    assert list(ApiReports().due(image, frozenset(), Now(2, 2))) == []
