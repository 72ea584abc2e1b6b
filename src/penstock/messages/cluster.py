"""Requests about the cluster as a whole: its feature level."""

from __future__ import annotations

from penstock.messages.fields import NameField, Request, Response


class RaiseFeatureLevelRequest(Request, frozen=True, kw_only=True):
    """Raise the cluster's feature level, for administrators; never lowered. The present level changes nothing."""

    feature_level: NameField | None = None  # as "0.4"; None: the newest that the metadata leader knows


class RaiseFeatureLevelResponse(Response, frozen=True, kw_only=True):
    """The level, as now known to every live broker."""

    feature_level: str
    index: int  # of the metadata change; 0 if the cluster was at that level
