"""The pages on measuring: their commands and rows exist, and their configs stay on this machine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from penstock.base.addresses import Address
from penstock_bench.systems import clusters, external
from penstock_bench.systems.system import VARIANTS
from tests.docs.reference.cli_reference import commands

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "how-to/benchmark.md",
    "how-to/benchmark-replicas.md",
    "how-to/benchmark-kafka.md",
    "how-to/benchmark-liftbridge.md",
    "explanation/benchmark-method.md",
)
PAGE = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
COMMANDS = {" ".join(path): command for path, command in commands()}
PRODUCTS = ("penstock", "jetstream", "kafka", "liftbridge", "echo", "null")


def blocks(*languages: str) -> list[str]:
    found = re.findall(r"^ *```(\w+)\n(.*?)^ *```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


LINES = [line.strip() for text in blocks("sh") for line in text.splitlines() if line.strip().startswith("penstock ")]


def test_there_is_something_to_test() -> None:
    assert len(LINES) >= 4
    assert len(blocks("properties")) == len(blocks("yaml")) == 1


@pytest.mark.parametrize("line", LINES)
def test_every_command_can_be_given(line: str) -> None:
    words = shlex.split(line)
    name = max((name for name in COMMANDS if line.startswith(name)), key=len)
    COMMANDS[name].make_context(name, words[len(name.split()) :])  # raises what a person would be told


def test_nothing_listens_on_other_than_loopback() -> None:
    addresses = re.findall(r"\b([\w.]+):(\d{4,5})\b", "".join(blocks("sh", "properties", "yaml")))
    assert len(addresses) > 5
    assert [one for one in addresses if not Address(one[0], int(one[1])).is_loopback] == []


def test_every_row_that_is_named_is_measured() -> None:
    known = {*VARIANTS, *clusters.VARIANTS, *external.KNOWN}
    named = set(re.findall(rf"`((?:{'|'.join(PRODUCTS)})(?:-[a-z0-9]+)*)`", PAGE))
    assert {"kafka-null", "jetstream-async", "echo"} <= named <= known


@pytest.mark.parametrize("page", PAGES)
def test_every_linked_file_is_there(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not ((DOCS / page).parent / link).exists()] == []


def test_the_index_names_it() -> None:
    assert "(how-to/benchmark.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
