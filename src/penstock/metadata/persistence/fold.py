"""Fold of a journal: `apply`, command by command, with all starts of the broker counted together.

Theory: a start raises the leader epoch of every stream, so a journal of a thousand starts and ten thousand streams
would make ten million states, nearly all of them unused. No other command reads an epoch: so the starts are counted,
and each stream is raised once, by the number of starts after its creation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from penstock.base.errors import RemoteError
from penstock.base.ids import StreamId
from penstock.metadata.commands import Command, CreateStream, StartBroker
from penstock.metadata.effects.apply import apply
from penstock.metadata.effects.streams import Raising
from penstock.metadata.image import ClusterImage, StreamState
from penstock.metadata.persistent_map import PersistentMap


class Folded(NamedTuple):
    """The image; the deleted streams (their leader epochs are meaningless); the time of the last start."""

    image: ClusterImage
    deleted: tuple[StreamState, ...]
    last_start_us: int


def fold(commands: Iterable[tuple[int, Command]]) -> Folded:
    """Return the result of these commands, given with their indexes."""
    image = ClusterImage()
    deleted: list[StreamState] = []
    starts = last_start_us = 0
    starts_before: dict[StreamId, int] = {}
    for index, command in commands:
        if isinstance(command, StartBroker):
            starts += 1
            last_start_us = command.started_us
            image = replace(image, index=index)
            continue
        image, outcome = apply(image, index, command)
        if isinstance(outcome, RemoteError) or outcome.stream is None or not outcome.changed:
            continue
        if isinstance(command, CreateStream):
            starts_before[outcome.stream.stream_id] = starts
        elif outcome.deleted:
            deleted.append(outcome.stream)
    raising = Raising()
    raised = {
        stream_id: raising.stream(state, starts - starts_before[stream_id])
        for stream_id, state in image.streams.items()
    }
    return Folded(replace(image, streams=PersistentMap(raised)), tuple(deleted), last_start_us)
