"""Garbage collection in Spark's Python workers.

Theory: after each task `pyspark.daemon` has Python collect all garbage, and that visits every object of every module:
100,000 of them with PySpark, pyarrow and Penstock, some 50 ms a task. Modules are never garbage, so they are exempt.
"""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"  # the program of a worker, which is a fork of it
_is_done = False


def exempt_loaded() -> None:
    """In a worker of Spark, exempt the objects that exist now from later collections, once; elsewhere do nothing.

    Call it when the modules of a task are loaded. Other processes are the user's, and so is what is garbage in them.
    """
    global _is_done
    if _is_done or not _is_worker():
        return
    _is_done = True
    gc.collect()  # what is garbage now would never be freed
    gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
