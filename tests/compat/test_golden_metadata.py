"""Commands and images of every released format are read as what they were.

They are written as they were, too, but for those that hold a config: its later fields are written with their defaults.
"""

from __future__ import annotations

from typing import get_args

import pytest

from penstock.metadata.commands import Command, decode_command
from penstock.metadata.snapshot import decode_image
from tests.compat.golden_metadata import COMMANDS, GOLDEN, golden_bytes, image, later_image


@pytest.mark.parametrize("name", sorted({*golden_bytes()} - {"command-create-stream.bin", "image1.bin", "image2.bin"}))
def test_written_as_it_was(name: str) -> None:
    assert golden_bytes()[name] == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_read_as_what_it_was(name: str) -> None:
    assert decode_command((GOLDEN / f"command-{name}.bin").read_bytes()) == COMMANDS[name]


def test_an_image_is_read_as_what_it_was() -> None:
    assert decode_image((GOLDEN / "image1.bin").read_bytes()) == image()


def test_a_later_image_is_read_as_what_it_was() -> None:
    assert decode_image((GOLDEN / "image2.bin").read_bytes()) == later_image()


def test_there_is_one_of_each_command() -> None:
    assert {type(command) for command in COMMANDS.values()} == set(get_args(Command))


def test_the_image_has_something_in_every_field() -> None:
    partitions = image().by_name("orders").partitions
    assert any(partition.eligible for partition in partitions)
    assert any(partition.awaited_data_dir_id for partition in partitions)
    assert any(partition.unsure for partition in later_image().by_name("orders").partitions)
