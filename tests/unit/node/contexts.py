"""A node's context for tests of its parts."""

from __future__ import annotations

from random import Random

from penstock.base.ids import BrokerId
from penstock.metadata.image import ClusterImage
from penstock.node.context import Context
from penstock.node.settings import Settings
from penstock.vfs import Vfs
from penstock.vfs.memory import MemoryVfs


def context_of(vfs: Vfs | None = None, *, broker_id: int = 1, image: ClusterImage | None = None) -> Context:
    """Return a context of broker `broker_id` at time 0."""
    settings = Settings(broker_id=BrokerId(broker_id), data_dir="/data")
    context = Context(MemoryVfs() if vfs is None else vfs, settings, Random(1))
    if image is not None:
        context.image = image
    return context
