"""Versions of PySpark and pyarrow that do not work are refused by the source itself, with those that do."""

from __future__ import annotations

import inspect
import re
import tomllib
import warnings
from importlib import import_module, metadata
from pathlib import Path

import pyspark
import pytest
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from penstock.base.errors import OperationalError
from penstock.spark.runtime.versions import PYARROW_OLDEST, PYSPARK_BEYOND, PYSPARK_OLDEST, check_versions
from penstock.spark.source import DefaultSource

PROJECT = tomllib.loads((Path(__file__).resolve().parents[4] / "pyproject.toml").read_text())["project"]
SPARK = {re.split("[<>]", one)[0]: one for one in PROJECT["optional-dependencies"]["spark"]}


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("3.5.9", "PySpark 3.5.9 is too old: Penstock works with PySpark 4.2 or newer, below 5"),
        ("4.1.4", "an older Spark reads what `penstock archive` has written"),
        ("5.0.0.dev1", "PySpark 5.0.0.dev1 is newer than what Penstock was tried with"),
    ],
)
def test_a_pyspark_that_does_not_work_is_refused_by_the_source(
    monkeypatch: pytest.MonkeyPatch, version: str, told: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(OperationalError, match=re.escape(told)):
        DefaultSource({"stream": "orders"})


@pytest.mark.parametrize("version", ["4.2.0", "4.2.0.dev3", "4.3rc1", "4.10.1"])
def test_others_are_taken(version: str) -> None:
    check_versions(version)


def test_an_old_pyarrow_is_refused() -> None:
    with pytest.raises(OperationalError, match=r"pyarrow 18\.1\.0 is too old: Penstock needs 21 or newer"):
        check_versions(pyarrow="18.1.0")


def test_the_bounds_are_those_that_pip_is_told() -> None:
    assert SPARK["pyspark"] == f"pyspark>={'.'.join(map(str, PYSPARK_OLDEST))},<{PYSPARK_BEYOND[0]}"
    assert f"pyarrow>={PYARROW_OLDEST[0]}" in PROJECT["dependencies"]


def test_the_extra_brings_a_pandas_of_which_pyspark_does_not_warn() -> None:
    """PySpark names no upper bound, and warns of a newer one in a newcomer's first steps."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        require_minimum_pandas_version()
    assert [str(one.message) for one in told] == []
    warns_from = re.search(r'>= LooseVersion\("(\d+)[.\d]*"\)', inspect.getsource(require_minimum_pandas_version))
    assert warns_from is not None
    assert SPARK["pandas"].endswith(f",<{warns_from[1]}")


def test_the_extra_brings_what_transform_with_state_imports() -> None:
    """PySpark names protobuf in none of the extras that people take, and its workers end without it."""
    assert import_module("pyspark.sql.streaming.proto.StateMessage_pb2").StateRequest
    source = Path(import_module("pyspark.sql.streaming.proto").__path__[0], "StateMessage_pb2.py").read_text()
    made_with = re.search(r"Protobuf Python Version: ([\d.]+)", source)
    assert made_with is not None
    least, beyond = (re.search(rf"{sign}([\d.]+)", SPARK["protobuf"]) for sign in (">=", "<"))
    assert least is not None
    assert beyond is not None

    def numbers(text: str) -> list[int]:
        return [int(one) for one in text.split(".")]

    assert numbers(least[1]) >= numbers(made_with[1]), "older ones refuse what was made with a newer one"
    assert numbers(beyond[1])[0] <= numbers(made_with[1])[0] + 2, "protobuf takes the next major version, and no other"
    assert numbers(least[1]) <= numbers(metadata.version("protobuf")) < numbers(beyond[1])
