"""The work done per message: plain Python, compiled by Cython where a C compiler is. Nothing here knows of streams.

Rules: one source for both. What a module does compiled, it does plain, only slower; the tests run both ways. Types of C
stand in the `.pxd` beside a module, and `setup.py` lists what is compiled. Cython is not needed to run it.

| `PENSTOCK_PLAIN` | the modules of this package                                   |
|------------------|---------------------------------------------------------------|
| not set          | compiled, where they were compiled                            |
| `1`              | plain: for tests, and for whoever does not trust the compiler |
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from importlib.util import find_spec

if os.environ.get("PENSTOCK_PLAIN") == "1":
    for _folder in __path__:
        sys.path_importer_cache[_folder] = FileFinder(_folder, (SourceFileLoader, SOURCE_SUFFIXES))


def way() -> str:
    """How the hot path runs, as it is said everywhere behind `hot path: `."""
    return "compiled" if is_compiled() else "plain Python"


def is_compiled() -> bool:
    """Whether this process runs the compiled modules. They are compiled together, so one tells."""
    spec = find_spec("penstock.hot.scan")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
