"""The keyword arguments that type checkers know are those that there are."""

from __future__ import annotations

import inspect

from penstock.frugal.scopes import PublishOptions, ScopePublisher, ScopeSubscriber, SubscribeOptions
from penstock.idl.python import names


def test_options_of_a_publish_are_its_parameters() -> None:
    parameters = set(inspect.signature(ScopePublisher._publish).parameters)
    assert set(PublishOptions.__annotations__) == parameters - {
        "self",
        "operation",
        "ctx",
        "variables",
        "message",
        "nowait",
    }


def test_options_of_a_subscribe_are_its_parameters() -> None:
    parameters = set(inspect.signature(ScopeSubscriber._subscribe).parameters)
    named = {"self", "operation", "variables", "handler", "queue"}
    assert set(SubscribeOptions.__annotations__) == parameters - named


def test_variables_of_a_scope_give_way_to_options() -> None:
    assert {*PublishOptions.__annotations__, "nowait"} == names.PUBLISH_OPTIONS <= names.OF_SCOPE
    assert set(SubscribeOptions.__annotations__) == names.SUBSCRIBE_OPTIONS <= names.OF_SCOPE
