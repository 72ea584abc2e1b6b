"""The arguments of a consumer."""

from __future__ import annotations

import pytest

from penstock.client.consume import consumers
from penstock.client.link.keywords import ConsumerOptions


def test_options_are_what_is_wanted() -> None:
    options = {name.removesuffix("_s") for name in consumers.ConsumerSettings._fields}
    assert set(ConsumerOptions.__annotations__) == options - {"stream", "group", "start", "timeout"}


def test_what_cannot_be_is_refused() -> None:
    for options, error in (
        ({"batch_rows_max": 0}, ValueError),
        ({"checkpoint_interval": 0.0}, ValueError),
        ({"columns": ["colour"]}, ValueError),
        ({"follows": True}, TypeError),
    ):
        with pytest.raises(error):
            consumers.consumer_settings("orders", "billing", 0, 1.0, options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="may hold only letters"):
        consumers.consumer_settings("orders", "a b", 0, 1.0, {})
