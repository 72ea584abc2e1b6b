"""Versions of schemas in a checkpoint: noted in offsets, found again, and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.base.errors import ConfigError
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.typed import typed_by
from penstock.spark.options.options import Decode
from penstock.spark.options.positions import Positions, schema_versions
from penstock.spark.reading.typed import check_versions_of, versions_in
from tests.unit.lake.reading.test_typed import ONE, TWO, schemas

NOTED = Positions({"one": 1}, {Key("one", 0): Position(5)}, schemas={"one": {"s": 1}})


def checkpoint(folder: Path, *lines: str, number: int = 0) -> str:
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / str(number)).write_text("\n".join(["v1", "{}", *lines]))
    return str(folder)


def test_offsets_hold_the_versions_and_older_offsets_have_none() -> None:
    text = NOTED.to_json()
    assert Positions.of_json(text) == NOTED
    assert schema_versions(text) == {"one": {"s": 1}}
    assert Positions.of_json(NOTED._replace(schemas={}).to_json()).schemas == {}
    with pytest.raises(ConfigError, match="the checkpoint was not written by this source"):
        Positions.of_json({"one": {**text["one"], "schemas": {"s": "1"}}})


def test_the_newest_offsets_of_a_checkpoint_say_the_versions(tmp_path: Path) -> None:
    assert versions_in(str(tmp_path)) is None
    checkpoint(tmp_path, "7", "torn{", '{"0": {"x": 1}}', json.dumps(NOTED.to_json()), number=9)
    newest = NOTED._replace(schemas={"one": {"s": 2}})
    where = checkpoint(tmp_path, json.dumps(newest.to_json()), number=10)
    assert versions_in(where) == versions_in(f"file://{where}") == {"one": {"s": 2}}
    with pytest.raises(ConfigError, match="is on no disk of the driver; give schemaVersions"):
        versions_in("s3://bucket/checkpoint")


def test_a_query_with_other_columns_than_it_began_with_is_refused_unless_an_option_asks_for_them() -> None:
    newest = typed_by([schemas("one", ONE, TWO)])
    check_versions_of({}, newest, Decode())
    check_versions_of({"one": {"s": 2}}, newest, Decode())
    check_versions_of({"one": {"s": 1}}, newest, Decode({}))
    with pytest.raises(ConfigError, match=r'began with the columns of {"one": {"s": 1}}, and would go on'):
        check_versions_of({"one": {"s": 1}}, newest, Decode())
    same = typed_by([schemas("one", ONE, ONE)])
    check_versions_of({"one": {"s": 1}}, same, Decode())
