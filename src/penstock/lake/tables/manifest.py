"""The manifest of an archive, `_penstock/archive.json`: table format, streams with their start positions, decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.base.errors import CorruptionError
from penstock.lake.reading.positions import Key, Position
from penstock.lake.tables.folder import OWN, RESTORE, write_durably


class ArchiveManifest(NamedTuple):
    """The content of `_penstock/archive.json`: the streams with their ids and start positions, and the options."""

    format: str
    stream_ids: Mapping[str, int]
    starts: Mapping[Key, Position]
    decode: str = ""
    schema: str = ""
    name: str = ""  # the archive's name at the brokers
    cluster: str = ""  # cluster id of these streams

    def to_json(self) -> dict[str, Any]:
        """Return the content of `archive.json`, sorted."""
        starts = sorted(self.starts.items())
        streams = {
            name: {
                "id": self.stream_ids[name],
                "starts": {str(key.partition): at.offset for key, at in starts if key.stream == name},
                "epochs": {str(key.partition): at.leader_epoch for key, at in starts if key.stream == name},
            }
            for name in sorted(self.stream_ids)
        }
        how = {"format": self.format, "decode": self.decode, "schema": self.schema}
        return {"version": 1, "name": self.name, "cluster": self.cluster, **how, "streams": streams}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> ArchiveManifest:
        """Parse `archive.json`. Raise KeyError, TypeError or ValueError if it is invalid or of a newer version."""
        if found["version"] != 1:
            raise ValueError(f"version {found['version']} is newer than this Penstock")
        streams = found["streams"]
        return cls(
            found["format"],
            {name: int(one["id"]) for name, one in streams.items()},
            {
                Key(name, int(number)): Position(int(at), int(one.get("epochs", {}).get(number, 0)))
                for name, one in streams.items()
                for number, at in one["starts"].items()
            },
            found["decode"],
            found["schema"],
            found.get("name", ""),
            found.get("cluster", ""),
        )


def about_file(root: Path) -> Path:
    """Return the path of `archive.json`."""
    return root / OWN / "archive.json"


def read_about(root: Path) -> ArchiveManifest | None:
    """Return the content of `archive.json`; None if there is no archive. Raise CorruptionError if it is invalid."""
    file = about_file(root)
    try:
        return ArchiveManifest.of_json(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise CorruptionError(str(file), 0, "what an archive says of itself", found, advice=RESTORE) from None


def write_about(root: Path, about: ArchiveManifest) -> None:
    """Write `archive.json` atomically and durably."""
    write_durably(about_file(root), json.dumps(about.to_json(), indent=1).encode() + b"\n")
