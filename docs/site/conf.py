"""Sphinx's configuration: `make site` builds the documentation into build/site. ADR 68 says why it is built so.

Rules: pages stay plain Markdown that a repository's host shows; what the site needs more is made here. The source
folder is the repository's root, so links to files outside docs/ work as they stand: a page becomes a page of the site,
any other file a download. Every warning is an error: a broken link, a heading that is not there, a page that no table
of contents names.

| what                     | made from                                                                |
|--------------------------|--------------------------------------------------------------------------|
| navigation               | the headings and links of docs/README.md, then API reference and project |
| a link to a folder       | its README.md, or the page FOLDER_PAGES has for it                       |
| API reference            | docstrings, which are Markdown: `as_rst` makes reStructuredText of them  |
| index.html               | the page docs/README.md                                                  |
"""

from __future__ import annotations

import importlib
import importlib.util
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.ext.autodoc.mock import mock

from penstock import __version__

ROOT = Path(__file__).resolve().parents[2]
CONTENTS = "docs/README"
DECISIONS = "docs/adr/README"
FOLDER_PAGES = {"docs/adr": f"{DECISIONS}.md"}

project = "Penstock"
version = release = __version__
html_title = f"Penstock {__version__}"
html_theme = "furo"
html_show_copyright = False
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = CONTENTS
include_patterns = ["*.md", "docs/**.md", "examples/README.md", "src/penstock/batch/FORMAT.md"]
exclude_patterns = [".*", "build", "dist", "node_modules", "tests"]
myst_heading_anchors = 6  # links to headings as a repository's host has them
suppress_warnings = [
    "misc.highlighting_failure",  # examples leave something out with `…`
    "myst.header",  # a page may begin with a heading of a lower level
]
highlight_language = "none"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
_OPTIONAL = ("deltalake", "fastavro", "pandas", "py4j", "pyiceberg", "pyspark", "thrift")
autodoc_mock_imports = [name for name in _OPTIONAL if importlib.util.find_spec(name) is None]

_LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_INDEX = """<!doctype html>
<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={target}">
<title>Penstock</title><a href="{target}">Penstock</a>
"""
_ALL_DECISIONS = "\n```{toctree}\n:hidden:\n:glob:\n\n/docs/adr/0*\n```\n"
_PROJECT = ("README", "CHANGELOG", "ROADMAP", "CONTRIBUTING", "CODE_OF_CONDUCT", "SECURITY", "ARCHITECTURE", "GLOSSARY")
_API = ("penstock", "aio", "frugal", "spark", "testing")
_MADE_BY_CALLS = {"Client", "Consumer", "Producer", "Table"}  # not by their constructors, which are internal


def groups(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the groups of the table of contents in order: caption, and the pages that it links to, without `.md`."""
    heading, caption, pages = "", "Documentation", list[str]()
    seen: set[str] = set()
    for line in text.splitlines():
        if line.startswith(("## ", "### ")):
            yield caption, pages
            title = line.lstrip("#").strip()
            if line.startswith("## "):
                heading = title
            caption, pages = title if title == heading else f"{heading}: {title}", []
        for target, _ in _LINK.findall(line):
            path = posixpath.normpath(f"docs/{target}")
            is_page = path.startswith("docs/") and path.endswith(".md") and not path.startswith("docs/adr/")
            if is_page and path not in seen:
                seen.add(path)
                pages.append(path.removesuffix(".md"))
    yield caption, pages


def _toctree(caption: str, pages: list[str]) -> str:
    listed = "\n".join(f"/{page}" for page in pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def navigation(text: str) -> str:
    """Return the tables of contents for the navigation, as MyST directives."""
    made = [_toctree(caption, pages) for caption, pages in groups(text) if pages]
    made.append(_toctree("API reference", [f"docs/site/api/{name}" for name in _API]))
    others = [*_PROJECT, "examples/README", "src/penstock/batch/FORMAT", DECISIONS]
    made.append(_toctree("Project", others))
    return "".join(made)


def with_pages_for_folders(page: str, text: str) -> str:
    """Return a page whose links to folders lead to pages."""
    folder = posixpath.dirname(page)

    def replaced(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        if not (ROOT / path).is_dir():
            return link[0]
        target = FOLDER_PAGES.get(path, f"{path}/README.md")
        return f"]({posixpath.relpath(target, folder or '.')})"

    return _LINK.sub(replaced, text)


def as_rst(lines: list[str]) -> list[str]:
    """Return a docstring in Markdown as reStructuredText: code, tables and indented blocks are kept as they are."""
    made: list[str] = []
    is_literal = False
    for line in lines:
        is_block = line.startswith(("    ", "|"))
        if is_block and not is_literal:
            made += ["", "::", ""]
        elif line.strip() and not is_block and is_literal:
            made.append("")
        if line.strip():
            is_literal = is_block
        made.append(f"    {line}" if is_block and line.startswith("|") else line if is_block else _inline(line))
    return made


def _inline(line: str) -> str:
    parts = line.split("`")
    if len(parts) % 2 == 0:  # a code span over two lines: shown as it is
        return re.sub(r"([\\*`|_])", r"\\\1", line)
    text = [re.sub(r"([\\*|]|_\b)", r"\\\1", part) for part in parts[::2]]
    code = [f"``{part}``" for part in parts[1::2]]
    joined = text[0]
    for one, after in zip(code, text[1:], strict=True):
        joined += one + ("\\" if after[:1].isalnum() else "") + after
    return joined


def _read(app: Any, page: str, source: list[str]) -> None:
    text = with_pages_for_folders(page, source[0])
    if page == CONTENTS:
        text += navigation(source[0])
    elif page == DECISIONS:
        text += _ALL_DECISIONS
    source[0] = text


def _import_names(app: Any) -> None:
    """Import the names that packages import on first use, so that autodoc sees them."""
    with mock(autodoc_mock_imports):
        for name in autodoc_mock_imports:
            importlib.import_module(name).__version__ = "9"  # modules refuse versions that are too old
        for module in (importlib.import_module("penstock.spark"), importlib.import_module("penstock.testing")):
            for name in module.__all__:
                setattr(module, name, getattr(module, name))


def _shown_signature(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str] | None:
    is_internal = what == "exception" or (what == "class" and name.rpartition(".")[2] in _MADE_BY_CALLS)
    return ("", "") if is_internal and signature else None


def _left_out(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    return True if type(member).__name__ == "_tuplegetter" else None  # "Alias for field number 6"


def _document(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def _finished(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        target = f"{CONTENTS}.html"
        text = _INDEX.format(target=target)
        (Path(app.outdir) / "index.html").write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Connect the hooks."""
    app.connect("builder-inited", _import_names)
    app.connect("source-read", _read)
    app.connect("autodoc-process-signature", _shown_signature)
    app.connect("autodoc-skip-member", _left_out)
    app.connect("autodoc-process-docstring", _document)
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
