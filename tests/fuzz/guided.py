"""Let atheris look for inputs that reach new code, in the plain source: the same code that is compiled.

    python -m tests.fuzz.guided scan -runs=100000     (further options are libFuzzer's)

What it finds is kept in the build folder, and `tests.fuzz.run` begins with it. Needs `pip install atheris`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["penstock.hot"]):
    from tests import hot_modes

    hot_modes.plain("scan")  # imports all of them

from tests.fuzz import corpus
from tests.fuzz.seeds import PIECES
from tests.fuzz.target import INPUT_BYTES_MAX
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).resolve().parents[2] / "build" / "fuzz" / "corpus"


def _dictionary() -> Iterator[str]:
    """The pieces that the formats know, as libFuzzer reads them."""
    for piece in PIECES:
        digits = "".join(f"\\x{byte:02x}" for byte in piece)
        yield f'"{digits}"\n'


def main(name: str, options: list[str]) -> None:
    """Fuzz one target until libFuzzer's options say that it is enough."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    corpus.write(folder, corpus.read(name))
    dictionary = CORPUS.parent / "dictionary"
    dictionary.write_text("".join(_dictionary()))
    target = TARGETS[name]
    limits = [f"-max_len={INPUT_BYTES_MAX}", f"-dict={dictionary}", f"-artifact_prefix={CORPUS.parent}/{name}-"]
    atheris.Setup([sys.argv[0], *limits, *options, str(folder)], lambda data: target.run(hot_modes.plain, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
