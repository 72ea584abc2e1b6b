"""Files of an Iceberg table's metadata, on disk before the catalog refers to them.

`penstock.lake.tables.iceberg` names `SyncedFileIO` to pyiceberg, which writes manifests and metadata through it.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.lake.tables.folder import make_folder
from penstock.vfs.real import sync_folder_if_possible


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's local files; those that it writes are synced, with their folder, when they are closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        file = super().new_output(location)
        return _SyncedFile(file.location, file._path, file._filesystem)  # noqa: SLF001 (no public name in all versions)


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> _Synced:
        """Create the file. Raise FileExistsError if it exists and `overwrite` is not set."""
        path = Path(self._path)
        make_folder(path.parent)
        return _Synced(path, overwrite=overwrite)


class _Synced(io.BufferedWriter):
    """A file that is synced, with its folder, when it is closed."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._path = path
        super().__init__(io.FileIO(path, "wb" if overwrite else "xb"))

    def close(self) -> None:
        """Write what is buffered, sync, and close."""
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()
        sync_folder_if_possible(self._path.parent)
