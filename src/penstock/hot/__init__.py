"""Per-message work (the hot path): plain Python, compiled by Cython where a C compiler is available.

Rules: one source for both. The compiled and the plain module behave the same, the plain one is only slower; the tests
run both. C types are in the `.pxd` beside a module, and `setup.py` lists the compiled modules. Cython is not needed at
run time. Nothing in here knows streams.

| `PENSTOCK_PLAIN` | the modules of this package                                   |
|------------------|---------------------------------------------------------------|
| not set          | compiled, if they were compiled                               |
| `1`              | plain: for tests, or to rule out the compiler                 |
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
    """Return how the hot path runs, as shown after `hot path: `."""
    return "compiled" if is_compiled() else "plain Python"


def is_compiled() -> bool:
    """True if this process runs the compiled modules. They are compiled together, so one is checked."""
    spec = find_spec("penstock.hot.scan")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
