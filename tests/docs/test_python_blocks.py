"""Each Python block of the README and of docs/ can be pasted: it compiles, and binds each name that it uses.

A block that begins with `# continues the block above` is pasted behind the one before it, one with
`# paste into `python -m asyncio`` where `await` is allowed.
"""

from __future__ import annotations

import builtins
import re
import symtable
from pathlib import Path
from textwrap import dedent, indent

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.parent.name != "reference"  # signatures
]
FRAGMENTS = {("fuzz.md", 0), ("test-with-the-simulator.md", 2)}  # of a file that the page names
CONTINUES = "# continues the block above"
ASYNCIO = "# paste into `python -m asyncio`"
GIVEN = {*dir(builtins), "__name__", "__file__"}


def python_blocks(page: str) -> list[str]:
    """The programs of a page, each together with the blocks that it continues."""
    blocks: list[str] = []
    for text in re.findall(r"^ *```python\n(.*?)^ *```", page, flags=re.DOTALL | re.MULTILINE):
        block = dedent(text)
        blocks.append(blocks[-1] + block if block.startswith(CONTINUES) else block)
    return blocks


def unbound(source: str) -> set[str]:
    """The names that a program uses and neither binds, imports nor has as builtins."""
    if source.startswith(ASYNCIO):
        source = f"async def block():\n{indent(source, '    ')}"
    compile(source, "block", "exec")
    top = symtable.symtable(source, "block", "exec")
    bound = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    used, tables = set(), [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {one.get_name() for one in table.get_symbols() if one.is_global() and one.is_referenced()}
        if table is top:
            used |= {one.get_name() for one in table.get_symbols() if one.is_referenced()}
    return used - bound - GIVEN


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_block_can_be_pasted(path: Path) -> None:
    wrong = {}
    for number, source in enumerate(python_blocks(path.read_text(encoding="utf-8"))):
        if (path.name, number) in FRAGMENTS:
            continue
        try:
            missing = unbound(source)
        except SyntaxError as error:
            wrong[number] = str(error)
        else:
            if missing:
                wrong[number] = f"unbound: {sorted(missing)}"
    assert wrong == {}


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("import penstock\nwith penstock.connect() as client:\n    client.status()\n", set()),
        ("def f(x):\n    return [x + y for y in z]\n", {"z"}),
        ("async def main():\n    await nats.connect()\n", {"nats"}),
        ("for one in client.read():\n    print(one)\n", {"client"}),
    ],
)
def test_the_check_finds_what_is_unbound(source: str, missing: set[str]) -> None:
    assert unbound(source) == missing
