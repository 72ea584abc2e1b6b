"""Arguments of Python calls become JetStream's config of a consumer."""

from __future__ import annotations

import pytest

from penstock.client import consumer_config as configs
from penstock.client.consumer_config import consumer_config, with_fields
from penstock.client.link.keywords import QueueConfig
from penstock.jetstream.readers.config import fields as served


def test_options_of_penstock_are_in_the_metadata() -> None:
    found = consumer_config("c", order_by="key", dead_letters="dead")
    assert found["metadata"] == {served.ORDER_BY: "key", served.DEAD_LETTERS: "dead"}
    assert consumer_config("c", dead_letters="dead")["metadata"] == {served.DEAD_LETTERS: "dead"}
    assert "metadata" not in consumer_config("c")
    with pytest.raises(ValueError, match="dead_letters is empty"):
        consumer_config("c", dead_letters="")


def test_other_metadata_does_not_take_dead_letters_away() -> None:
    made = consumer_config("c", dead_letters="dead", deliveries_max=3)
    found = with_fields(made, {"max_deliver": 5, "metadata": {"team": "a"}})
    assert found["max_deliver"] == 5
    assert found["metadata"] == {served.DEAD_LETTERS: "dead", "team": "a"}
    assert with_fields(made, {"metadata": {served.DEAD_LETTERS: "x"}})["metadata"] == {served.DEAD_LETTERS: "x"}
    assert with_fields(consumer_config("c"), {}) == consumer_config("c")


def test_a_queue_has_all_options_of_a_config() -> None:
    told = {name for name in consumer_config.__annotations__ if name not in ("name", "return")}
    assert told == set(QueueConfig.__annotations__)
    assert configs.DEAD_LETTERS == served.DEAD_LETTERS
