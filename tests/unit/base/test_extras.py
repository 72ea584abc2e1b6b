"""How an extra is installed: from where Penstock was, and never as `penstock`, which is another project's name."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

import pytest

from penstock.base import extras
from penstock.base.extras import how_to_install

ROOT = Path(__file__).resolve().parents[3]
FROM_INDEX = "`pip install 'penstock-log[tls,encryption]'`"

SUFFIXES = frozenset({"", ".md", ".py", ".pxd", ".toml", ".txt", ".lock", ".yaml", ".yml", ".service", ".sh", ".cfg"})

SIGNS = (
    "install",
    "add",
    "download",
    "wheel",
    "uvx",
    "penstock[",
    "penstock\\[",
    "penstock=",
    "penstock>",
    "penstock~",
)
FROM_AN_INDEX = re.compile(
    r"""
    \b(?:pip[3x]?|uv|uv\ pip|uv\ tool|poetry|conda)\ +(?:install|add|download|wheel)\b
        [^\n`;&|]*? [\ '"] penstock (?=[\[\s'"`=<>~!;,)\\]|$)
    | \buvx\ +penstock\b
    | (?<![\w/.\-])["']penstock\\*\[                                  # a requirement, as a shell takes it
    | ^\s*["']?penstock(?:\[.*\])?\s*[=~<>!]=                         # a line of requirements
    """,
    re.VERBOSE | re.MULTILINE,
)
"""What would have somebody fetch `penstock` by that name."""


@pytest.mark.parametrize(
    "text",
    [
        "pip install penstock",
        "pip install -U penstock",
        "pip3 install --user penstock==1.0",
        "`pip install 'penstock[tls]'`",
        'pip install "penstock\\[spark,java]"',
        "python -m pip install penstock",
        "pipx install penstock",
        "uv pip install --python x 'penstock[demo]'",
        "uv add penstock",
        "uvx penstock serve",
        "penstock==0.2.0",
        "penstock[tls]>=0.2",
        "  'penstock[tls]',",
    ],
)
def test_what_would_fetch_another_project_is_found(text: str) -> None:
    assert FROM_AN_INDEX.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install '.[tls]'",
        "sudo /opt/penstock/bin/pip install -c constraints.txt .",
        "/opt/penstock/bin/pip install --no-cache-dir .",
        "penstock-venv/bin/pip install '.[spark]'",
        'pip install "$(ls dist/penstock_log-*.whl)[spark]"',
        "pip install 'penstock-log[spark]'",
        "penstock-log==0.3.0",
        "in the folder that Penstock was installed from, pip install .; then penstock serve",
        "image: penstock:0.2",
    ],
)
def test_what_installs_penstock_is_not(text: str) -> None:
    assert not FROM_AN_INDEX.search(text)


def test_no_text_has_somebody_install_another_project_of_that_name() -> None:
    folders = [ROOT / name for name in ("src", "bench", "docs", "deploy", "tests", "model")]
    files = [*ROOT.iterdir(), *(file for folder in folders for file in folder.rglob("*"))]
    found = []
    for file in files:
        if file.suffix in SUFFIXES and file.is_file() and file != Path(__file__) and "egg-info" not in str(file):
            text = file.read_text(encoding="utf-8", errors="replace")
            lines = [line for line in text.splitlines() if "penstock" in line and any(one in line for one in SIGNS)]
            found += [f"{file.name}: {line.strip()}" for line in lines if FROM_AN_INDEX.search(line)]
    assert found == []


def test_an_extra_is_installed_from_where_penstock_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, object] = {}

    class Installed(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return json.dumps(told) if filename == "direct_url.json" else None

        def locate_file(self, path: object) -> Path:
            return Path(str(path))

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert how_to_install("tls") == f"`pip install '.[tls]'` in {ROOT}", "it runs from there"
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "lib/python3.11/site-packages/penstock/base/extras.py"))
    assert how_to_install("tls", "encryption") == FROM_INDEX
    told["url"] = f"file://{tmp_path}/pen%20stock"
    assert how_to_install("tls", "encryption") == FROM_INDEX, "it is gone"
    assert how_to_install("bench") == "`pip install '.[bench]' ./bench` in the folder of Penstock's source"
    (tmp_path / "pen stock").mkdir()
    (tmp_path / "pen stock/pyproject.toml").touch()
    assert how_to_install("tls") == f"`pip install '.[tls]'` in {tmp_path}/pen stock"
    assert how_to_install("bench") == f"`pip install '.[bench]' ./bench` in {tmp_path}/pen stock"
    wheel = tmp_path / "pen stock/penstock_log-0.3.0-py3-none-any.whl"
    told["url"] = f"file://{tmp_path}/pen%20stock/{wheel.name}"
    assert how_to_install("tls", "encryption") == FROM_INDEX, "it is gone"
    wheel.touch()
    assert how_to_install("tls") == f"`pip install '{wheel}[tls]'`"
    assert how_to_install("bench") == "`pip install '.[bench]' ./bench` in the folder of Penstock's source"
    told["url"] = "https://example.org/penstock_log-0.3.0-py3-none-any.whl"
    assert how_to_install("tls", "encryption") == FROM_INDEX

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert how_to_install("tls") == "`pip install '.[tls]'` in the folder of Penstock's source", "a zip of its sources"
