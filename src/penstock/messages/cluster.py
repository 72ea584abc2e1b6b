"""Requests about the cluster as a whole: its feature level, and who serves JetStream's API."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.messages.fields import BrokerIdField, Int64Field, NameField, Request, Response, TimestampField


class RaiseFeatureLevelRequest(Request, frozen=True, kw_only=True):
    """Raise the cluster's feature level, for administrators; never lowered. The present level changes nothing."""

    feature_level: NameField | None = None  # as "0.4"; None: the newest that the metadata leader knows


class RaiseFeatureLevelResponse(Response, frozen=True, kw_only=True):
    """The level, as now known to every live broker."""

    feature_level: str
    index: int  # of the metadata change; 0 if the cluster was at that level


class ApiDecisionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's decision who serves JetStream's API under a prefix."""

    prefix: str  # with its last dot: `$JS.API.`
    state: str  # "waiting": not served yet; "taken": served; "withdrawn": left to another service
    decided_us: TimestampField
    index: Int64Field  # of the metadata change
    why: str = ""
    broker_id: BrokerIdField | None = None  # whose evidence or setting led to it; None: no single one
    by: str = ""  # the user who asked for it
    held_back_by: tuple[BrokerIdField, ...] = ()  # brokers whose setting does not allow it


class TakeApiRequest(Request, frozen=True, kw_only=True):
    """Take back a prefix of JetStream's API from which the cluster has withdrawn, for administrators; a prefix that is
    named also from brokers that hold it back and are not live.

    The brokers look for another service again before they serve it. Any other prefix stays as it is.
    """

    # None: all that are withdrawn
    prefix: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.API_PREFIX_CHARS_MAX)] | None = None


class TakeApiResponse(Response, frozen=True, kw_only=True):
    """The decisions as they are now."""

    apis: tuple[ApiDecisionInfo, ...]
