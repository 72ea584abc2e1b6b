"""Supported versions of PySpark and pyarrow, checked on the driver and on every worker.

Rules: an error names the installed and the supported versions. The extra `spark` has the same bounds of PySpark: older
versions lack base classes of readers and writers, newer ones are not tested. `format("penstock")` does not use pandas;
the extra installs a version that PySpark supports.
"""

from __future__ import annotations

import importlib.util
import re

from penstock.base.errors import OperationalError
from penstock.base.extras import how_to_install

PYSPARK_OLDEST, PYSPARK_BEYOND = (4, 2), (5,)
PYARROW_OLDEST = (21,)


def check_versions(pyspark: str | None = None, pyarrow: str | None = None) -> None:
    """Raise OperationalError if PySpark is missing or a version is unsupported. None: the installed version."""
    spark_version = pyspark or _pyspark()
    numbers = _numbers(spark_version)
    if not PYSPARK_OLDEST <= numbers < PYSPARK_BEYOND:
        is_old = numbers < PYSPARK_OLDEST
        what = "too old" if is_old else "newer than what Penstock was tried with"
        bounds = f"Penstock works with PySpark {_text(PYSPARK_OLDEST)} or newer, below {_text(PYSPARK_BEYOND)}"
        hint = "; an older Spark reads what `penstock archive` has written" if is_old else ""
        raise OperationalError(f"PySpark {spark_version} is {what}: {bounds} ({how_to_install('spark')}){hint}")
    found = pyarrow or _pyarrow()
    if _numbers(found) < PYARROW_OLDEST:
        needed = f"Penstock needs {_text(PYARROW_OLDEST)} or newer on the driver and workers"
        raise OperationalError(f"pyarrow {found} is too old: {needed}")


def _pyspark() -> str:
    if importlib.util.find_spec("pyspark") is None:
        raise OperationalError(f"PySpark is not installed: {how_to_install('spark')}")
    import pyspark

    return pyspark.__version__


def _pyarrow() -> str:
    import pyarrow as pa

    return str(pa.__version__)


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
