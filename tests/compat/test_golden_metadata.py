"""Commands and images of every released format are read as what they were.

They are written as they were, too, but for those that hold a config, or the quotas of a user: later fields of these are
written with their defaults.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from penstock.base.companion_kinds import CompanionKind
from penstock.metadata.commands import Command, decode_command
from penstock.metadata.persistence.snapshot import decode_image
from tests.compat.golden_metadata import (
    COMMANDS,
    GOLDEN,
    IMAGES,
    api_image,
    archived_image,
    companion_image,
    consumers_image,
    golden_bytes,
    grown_image,
    image,
    later_image,
    observed_image,
    owned_image,
    raised_image,
    read_only_image,
    truncated_image,
)

HOLD_A_CONFIG = {"command-create-stream.bin", *(f"image{number}.bin" for number in range(1, len(IMAGES) + 1))}
HOLD_QUOTAS = {"command-create-user.bin", "command-alter-user.bin"}


@pytest.mark.parametrize("name", sorted({*golden_bytes()} - HOLD_A_CONFIG - HOLD_QUOTAS))
def test_written_as_it_was(name: str) -> None:
    assert golden_bytes()[name] == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_read_as_what_it_was(name: str) -> None:
    assert decode_command((GOLDEN / f"command-{name}.bin").read_bytes()) == COMMANDS[name]


@pytest.mark.parametrize("number", range(1, len(IMAGES) + 1))
def test_an_image_is_read_as_what_it_was(number: int) -> None:
    assert decode_image((GOLDEN / f"image{number}.bin").read_bytes()) == IMAGES[number - 1]()


def test_there_is_one_of_each_command() -> None:
    assert {type(command) for command in COMMANDS.values()} == set(get_args(Command))


def test_the_image_has_something_in_every_field() -> None:
    partitions = image().by_name("orders").partitions
    assert any(partition.eligible for partition in partitions)
    assert any(partition.awaited_data_dir_id for partition in partitions)
    assert read_only_image().by_name("orders").intake_us
    assert len(archived_image().by_name("orders").archived) == 2
    assert truncated_image().by_name("orders").truncated
    assert all(partition.observers for partition in observed_image().by_name("orders").partitions)
    assert owned_image().by_name("bills").owner
    assert raised_image().feature_level == (0, 4)
    assert companion_image().by_name("orders").has_marks
    assert consumers_image().by_name("orders").companions == (CompanionKind.MARKS, CompanionKind.CONSUMERS)
    assert consumers_image().by_name("bills").companions == (CompanionKind.CONSUMERS,)
    assert api_image().apis[0].held_back_by
    assert grown_image().by_name("orders").marks
    assert any(partition.unsure for partition in later_image().by_name("orders").partitions)


def grown(value: Any, path: tuple[Any, ...]) -> Any:
    """The same with a field more, at `path`: in a map, or at the end of an array."""
    if not path:
        return [*value, 7] if isinstance(value, list) else {**value, "a_later_field": 7}
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[path[0]] = grown(value[path[0]], path[1:])
    return copy


PLACES: list[tuple[str, tuple[Any, ...]]] = [
    *((name, ()) for name in COMMANDS),
    ("create-stream", ("config",)),
    ("change-isr", ("changes", 0)),
    ("change-isr", ("changes", 0, 4, 0)),
    ("elect-leaders", ("elections", 2)),
    ("recover-partitions", ("recoveries", 0)),
    ("recover-partitions", ("recoveries", 0, 3, 1)),
]


@pytest.mark.parametrize(("name", "path"), PLACES)
def test_what_a_later_version_has_added_is_not_dropped(name: str, path: tuple[Any, ...]) -> None:
    fields = msgspec.msgpack.decode((GOLDEN / f"command-{name}.bin").read_bytes())
    decode_command(msgspec.msgpack.encode(fields))
    with pytest.raises(msgspec.DecodeError):
        decode_command(msgspec.msgpack.encode(grown(fields, path)))
