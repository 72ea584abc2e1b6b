"""Keyword arguments of the methods of generated publishers and subscribers, for type checkers.

Tests compare the fields with the parameters of `ScopePublisher._publish` and `ScopeSubscriber._subscribe`, whose
docstrings say what they mean, and with the names that variables of scopes give way to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from penstock.client.values import Start
from penstock.frugal.scopes.redelivery import RetryPolicy


class PublishOptions(TypedDict, total=False):
    """The keyword arguments of a publish besides context, variables, message and `nowait`."""

    stream: str | None
    key: bytes | str | None
    message_id: str | None
    headers: Mapping[str, str] | None
    timeout: float


class SubscribeOptions(TypedDict, total=False):
    """The keyword arguments of a subscribe besides handler, variables and `queue`."""

    pending: int
    group: str
    stream: str | None
    handlers: int | None
    start: Start
    retry: RetryPolicy | None
    dead_letters: str
    session: float
    timeout: float
