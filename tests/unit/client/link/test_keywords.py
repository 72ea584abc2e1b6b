"""The keyword arguments that type checkers know are those that there are."""

from __future__ import annotations

import inspect

from penstock.base.config import ALTERABLE, StreamConfig
from penstock.client.blocking.client import Client
from penstock.client.link.keywords import PublishOptions, StreamChanges, StreamOptions


def test_options_of_streams_are_the_fields_of_their_config() -> None:
    own = {"name", "subject", "more_subjects", "former_subjects"}
    assert set(StreamOptions.__annotations__) == set(StreamConfig.__struct_fields__) - own
    assert set(StreamChanges.__annotations__) == ALTERABLE


def test_options_of_a_publish_are_its_parameters() -> None:
    parameters = set(inspect.signature(Client.publish).parameters)
    assert set(PublishOptions.__annotations__) == parameters - {"self", "subject", "value", "ack"}
