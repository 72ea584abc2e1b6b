"""The documentation site: its navigation has every page, docstrings become reStructuredText, and it builds."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import penstock
from tests.extent import needs_time

ROOT = Path(__file__).parents[2]
CONF = ROOT / "docs" / "site" / "conf.py"
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_conf", CONF)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--conf-dir", str(CONF.parent)]
    places = ["--doctree-dir", str(folder / "doctrees"), str(source), str(folder / "site")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (Path(penstock.__file__).parents[1], *sys.path[1:]))),
    }
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, *places],
        env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def test_every_page_of_the_documentation_is_in_its_table_of_contents(conf: ModuleType) -> None:
    contents = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    named = [page for _, pages in conf.groups(contents) for page in pages]
    pages = {one.relative_to(ROOT).with_suffix("").as_posix() for one in (ROOT / "docs").rglob("*.md")}
    made_here = ("docs/adr/", "docs/site/", "docs/README")
    assert set(named) == {one for one in pages if not one.startswith(made_here)}
    assert len(named) == len(set(named))


def test_groups_are_the_headings(conf: ModuleType) -> None:
    text = """# Documentation
[code](../ARCHITECTURE.md)
## Tutorials
- [first](tutorial/spark.md)
## How-to guides
### Streams
| task | page |
|---|---|
| keep less | [retention](how-to/keep-less.md#by-age), [again](tutorial/spark.md) |
"""
    assert [(caption, pages) for caption, pages in conf.groups(text) if pages] == [
        ("Tutorials", ["docs/tutorial/spark"]),
        ("How-to guides: Streams", ["docs/how-to/keep-less"]),
    ]


def test_a_link_to_a_folder_leads_to_a_page(conf: ModuleType) -> None:
    made = conf.with_pages_for_folders(
        "docs/how-to/x", "[a](../adr/) [b](../../examples/) [c](y.md#z) [d](https://e/f/)"
    )
    decisions = conf.DECISIONS.removeprefix("docs/")
    assert made == f"[a](../{decisions}.md) [b](../../examples/README.md) [c](y.md#z) [d](https://e/f/)"


def test_docstrings_are_markdown(conf: ModuleType) -> None:
    text = "Return `a`s, *all* of `b_c_`; f_.\n\n    code(`x`)\n\nThen:\n| a | b |\n|---|---|\n| c | d |\n- x|y"
    assert conf.as_rst(text.split("\n")) == [
        r"Return ``a``\s, \*all\* of ``b_c_``; f\_.", "",
        "", "::", "", "    code(`x`)", "",
        "", "Then:",
        "", "::", "", "    | a | b |", "    |---|---|", "    | c | d |",
        "", r"- x\|y",
    ]  # fmt: skip


@needs_time
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("# Documentation\n\n[there](page.md) [gone](gone.md)\n")
    (tmp_path / "docs" / "page.md").write_text("# Page\n\n## A heading\n\n[here](#a-heading) [not here](#another)\n")
    done = build(tmp_path, tmp_path)
    assert done.returncode != 0
    assert re.search(r"README\.md:3: WARNING: .*gone\.md", done.stderr)
    assert re.search(r"page\.md:5: WARNING: .*another", done.stderr)
    assert not re.search("WARNING: .*a-heading", done.stderr)


@needs_time
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert 'url=docs/README.html"' in (site / "index.html").read_text(encoding="utf-8")
    for page, shown in (
        ("penstock", ("penstock.Client.create_stream", "penstock.StreamConfig")),
        ("aio", ("penstock.aio.Client.publish", "penstock.aio.connect")),
        ("frugal", ("penstock.frugal.server.Server.drain", "penstock.frugal.scopes.ScopePublisher")),
        ("spark", ("penstock.spark.archive", "penstock.spark.session")),
        ("testing", ("penstock.testing.Cluster.kill",)),
    ):
        text = (site / "docs" / "site" / "api" / f"{page}.html").read_text(encoding="utf-8")
        assert [name for name in shown if f'id="{name}"' not in text] == []
    assert "FORMAT.html" in (site / "docs" / "README.html").read_text(encoding="utf-8")
