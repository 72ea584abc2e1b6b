"""What the node is told about the broker around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock.access import User
from penstock.base import limits
from penstock.base.config import Encryption
from penstock.base.ids import BrokerId
from penstock.batch.schema import FORMAT_VERSION
from penstock.vfs import Vfs

_FIRST_BROKER = BrokerId(1)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the node knows about the broker around it."""

    broker_id: BrokerId = _FIRST_BROKER
    broker_version: str = ""
    cluster_id: str = ""  # empty: not known yet
    data_dir_id: str = ""  # made with the data directory, at random
    guards: frozenset[str] = frozenset()  # of `node/losses.py`: which the data directory is known to have had
    process: str = ""  # random for each start
    voters: Mapping[BrokerId, str] = field(default_factory=lambda: MappingProxyType({}))  # the first ones: HOST:PORT
    join: tuple[str, ...] = ()  # HOST:PORT of brokers whose cluster this one is to join
    rack: str | None = None
    proves_brokers: bool = False  # it knows the secret of its cluster
    first_user: Callable[[], User] | None = None  # who is made where there are none
    requires_login: bool = False  # also while the cluster has no users, or this broker has not heard of them
    address: str = ""  # HOST:PORT told to clients and to other brokers
    data_dir: str = ""  # for people only
    nats_urls: tuple[str, ...] = ()  # for publishers, without credentials
    open_nats: str = ""  # what to tell as soon as everybody has to log in, if nobody has to at the embedded server
    format_version: int = FORMAT_VERSION
    partition_in_flight_bytes_max: int = limits.PARTITION_IN_FLIGHT_BYTES_MAX
    broker_in_flight_bytes_max: int = limits.BROKER_IN_FLIGHT_BYTES_MAX
    log_files_max: int = limits.LOG_FILES_MAX
    cleaner_bytes_per_s: int = limits.CLEANING_BYTES_PER_S_DEFAULT
    catch_up_bytes_per_s: int = limits.CATCH_UP_BYTES_PER_S_DEFAULT
    scrub_bytes_per_s: int = limits.SCRUB_BYTES_PER_S_DEFAULT
    scrub_interval_ms: int = limits.SCRUB_INTERVAL_MS_DEFAULT
    staged_keep_ms: int = limits.STAGED_KEEP_MS
    encrypted: Vfs | None = None  # the data directory, for streams that are encrypted; None: there are no keys
    internal_encryption: Encryption = Encryption.NONE  # of streams that Penstock makes for itself
