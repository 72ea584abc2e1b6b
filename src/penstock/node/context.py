"""The state that all parts of one node share: settings, effects, the time, the metadata image."""

from __future__ import annotations

from typing import Any

from penstock.base.clock import Now
from penstock.metadata.image import ClusterImage
from penstock.node.settings import Settings
from penstock.node.step import Outbox
from penstock.vfs import Vfs


class Context:
    """Built first, and handed to every part. Parts read it; `now` is set by the node and `image` by the quorum."""

    __slots__ = ("chance", "image", "now", "outbox", "settings", "vfs")

    def __init__(self, vfs: Vfs, settings: Settings, chance: Any) -> None:
        """`chance` is a source of randomness, such as a seeded random.Random."""
        self.vfs = vfs
        self.settings = settings
        self.chance = chance
        self.outbox = Outbox()  # effects for the driver
        self.now = Now(0, 0)  # time of the event that is being handled
        self.image = ClusterImage()  # metadata, as far as this broker has applied it
