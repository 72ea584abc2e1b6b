"""Encryption keys of a broker: from the settings into the data directory of encrypted streams, and reloaded.

Rules: keys come from a file or the environment, are kept in memory only, and appear in no log line. A key file readable
by others causes a warning, not an error. If reloading fails, the keys stay. A key removed from the file stays in
memory, with a warning: data may need it, and the next start would not have it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock.access.secret_files import open_to_others
from penstock.base.errors import OperationalError
from penstock.base.extras import how_to_install
from penstock.base.text_files import text_of
from penstock.broker.config.config import BrokerConfig
from penstock.broker.process.signals import on_signals
from penstock.commitlog.files.files import holds_messages
from penstock.vfs import Vfs
from penstock.vfs.keys import EncryptionKeys, parse_keys

_log = logging.getLogger(__name__)
_FILE_BYTES_MAX = 64 * 1024
_GONE = (
    "%s does not have the %s %s any more: what files here may need of that stays in memory until this broker stops. "
    "`penstock keys list` shows which keys are in use: before the next start put back those that are, or run "
    "`penstock keys rewrap`"
)


def encrypted(
    vfs: Vfs, config: BrokerConfig, loop: asyncio.AbstractEventLoop, were_read: Callable[[], None] = lambda: None
) -> Vfs | None:
    """Return `vfs` for encrypted streams; None if no keys are set. Raise OperationalError.

    From then on SIGHUP reloads the keys if they are in a file, and then calls `were_read`.
    """
    if config.encryption_keys is None:
        return None
    try:
        from penstock.vfs.encrypted import EncryptedVfs  # imports `cryptography`, an extra
    except ImportError:
        raise OperationalError(
            f"keys are set, and Penstock was installed without what encrypts: {how_to_install('encryption')}"
        ) from None
    keys = parse_keys(config.encryption_keys)
    file = config.encryption_keys_file
    if file is not None:
        if not _holds(file, config.encryption_keys):  # a supervisor passes on the keys of its own start
            read_again(file, keys)

        def told() -> None:
            if read_again(file, keys):
                were_read()

        on_signals(loop, (signal.SIGHUP,), told)
    return EncryptedVfs(vfs, keys, holds_messages)


def read_again(file: Path, keys: EncryptionKeys) -> bool:
    """Replace `keys` by those in the file, keeping old ones for reading; return False if the file has no valid keys."""
    try:
        staying = keys.replace(parse_keys(_text(file)))
    except (OSError, ValueError) as error:
        _log.error("the keys in %s cannot be read again, those of before stay: %s", file, error)
        return False
    _warn_of_others(file)
    _log.info("the keys in %s were read again: new files take %r, of %s", file, keys.current_id, ", ".join(keys.ids))
    if staying:
        _log.warning(_GONE, file, "key" if len(staying) == 1 else "keys", ", ".join(staying))
    return True


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        return text_of(opened.read(_FILE_BYTES_MAX))


def _holds(file: Path, text: str) -> bool:
    try:
        return _text(file).rstrip("\r\n") == text.rstrip("\r\n")  # like settings that are read from files
    except (OSError, ValueError):
        return False


def _warn_of_others(file: Path) -> None:
    with suppress(OSError):
        if (advice := open_to_others(file, file.stat())) is not None:
            _log.warning("%s", advice)
