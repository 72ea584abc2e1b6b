"""The broker's settings that the node uses."""

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
    """The broker's settings that the node uses."""

    broker_id: BrokerId = _FIRST_BROKER
    broker_version: str = ""
    cluster_id: str = ""  # empty: not known yet
    data_dir_id: str = ""  # random, created with the data directory
    guards: frozenset[str] = (
        frozenset()
    )  # of `node/data_dir/lost_files.py`: guards that the data directory is known to have had
    process: str = ""  # random for each start
    voters: Mapping[BrokerId, str] = field(default_factory=lambda: MappingProxyType({}))  # the first voters: HOST:PORT
    join: tuple[str, ...] = ()  # HOST:PORT of brokers whose cluster this one is to join
    rack: str | None = None
    proves_brokers: bool = False  # it knows the cluster's secret
    first_user: Callable[[], User] | None = None  # user to create in a cluster without users
    requires_login: bool = False  # also while the cluster has no users, or this broker does not know of them
    address: str = ""  # advertised HOST:PORT
    data_dir: str = ""  # for display only
    nats_urls: tuple[str, ...] = ()  # for publishers, without credentials
    open_nats: str = ""  # notice to log once login is required, if the embedded NATS server requires none
    format_version: int = FORMAT_VERSION
    partition_in_flight_bytes_max: int = limits.PARTITION_IN_FLIGHT_BYTES_MAX
    broker_in_flight_bytes_max: int = limits.BROKER_IN_FLIGHT_BYTES_MAX
    log_files_max: int = limits.LOG_FILES_MAX
    cleaner_bytes_per_s: int = limits.CLEANING_BYTES_PER_S_DEFAULT
    catch_up_bytes_per_s: int = limits.CATCH_UP_BYTES_PER_S_DEFAULT
    scrub_bytes_per_s: int = limits.SCRUB_BYTES_PER_S_DEFAULT
    scrub_interval_ms: int = limits.SCRUB_INTERVAL_MS_DEFAULT
    staged_keep_ms: int = limits.STAGED_KEEP_MS
    marks_per_snapshot_max: int = limits.MARKS_PER_SNAPSHOT_MAX
    domain_prefix: str = ""  # of the API of the JetStream domain that is served: `$JS.<domain>.API.`
    ack_domain: str = ""  # the domain that acks name: one that was configured; else acks stay what they are without it
    encrypted: Vfs | None = None  # the data directory with encryption; None: no keys
    internal_encryption: Encryption = Encryption.NONE  # of internal streams
