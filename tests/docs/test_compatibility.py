"""The page on compatibility says which versions of formats there are, and what is said where something is too new."""

from __future__ import annotations

import re
from pathlib import Path

import penstock
from penstock.base.ids import BrokerId, Incarnation
from penstock.batch.header import HEADER_VERSION
from penstock.batch.schema import FORMAT_VERSION
from penstock.broker.config.data_dir import DATA_FORMAT
from penstock.commitlog.files.index import ENTRY_VERSION
from penstock.commitlog.subjects import layout
from penstock.metadata.commands import DeleteUser, RaiseFeatureLevel
from penstock.metadata.feature_levels import NEWEST_LEVEL, SCHEMA_REGISTRY
from penstock.metadata.feature_versions import missing, unsupported_reason
from penstock.metadata.image import BrokerState, ClusterImage
from penstock.metadata.persistence.snapshot import SNAPSHOT_VERSION
from penstock.metadata.persistent_map import PersistentMap
from penstock.node.quorum.metadata_entries import TooOldError
from penstock.raft import records, snapshot_file

PAGE = (Path(__file__).parents[2] / "docs/reference/compatibility.md").read_text(encoding="utf-8")


def cluster(version: str) -> ClusterImage:
    broker = BrokerState(BrokerId(3), "b3:7422", None, "d", Incarnation(1), True, True, version)
    return ClusterImage(brokers=PersistentMap({broker.broker_id: broker}))


def test_the_versions_of_formats_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| (.*?) \| (.*?) \|", PAGE.split("## Formats")[1], flags=re.MULTILINE))
    assert rows["data directory (`penstock.json`)"] == str(DATA_FORMAT)
    assert rows["record batches (schema, header)"] == f"{FORMAT_VERSION}, {HEADER_VERSION}"
    assert rows["index entries"] == str(ENTRY_VERSION)
    assert rows["subject indexes"] == str(layout.VERSION)
    assert rows["Raft's log and its snapshot file"] == f"{records.LOG_VERSION}, {snapshot_file.SNAPSHOT_VERSION}"
    assert rows["image of the metadata"] == f"1 to {SNAPSHOT_VERSION}"


def test_what_is_said_is_what_the_page_says() -> None:
    error = unsupported_reason(cluster("0.1.0"), DeleteUser(name="ann", deleted_us=0))
    assert error is not None
    assert f"`{error.message.replace('delete', 'create')}`" in PAGE
    assert str(TooOldError.unknown(ValueError("x"))).removesuffix(" (x)") in PAGE
    for error in (
        missing(cluster("0.4.0"), SCHEMA_REGISTRY),
        unsupported_reason(cluster("0.3.0"), RaiseFeatureLevel(feature_level=NEWEST_LEVEL)),
    ):
        assert error is not None
        assert f"`{error.message}`".replace("`penstock cluster upgrade`", "penstock cluster upgrade") in PAGE


def test_the_page_names_this_version() -> None:
    minor = ".".join(penstock.__version__.split(".")[:2])
    assert f": {minor} follows 0." in PAGE
    assert "(reference/compatibility.md)" in (Path(__file__).parents[2] / "docs/README.md").read_text()
