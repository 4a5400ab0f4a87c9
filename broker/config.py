"""The broker's configuration: one frozen model whose keys are RocketMQ's own broker.conf names.

A configuration is a TOML file of plain `key = value` pairs, and `KEY=VALUE` overrides on top of it. A key
that means nothing here is refused, with the nearest known keys named, so that a misspelt limit is not
silently the default.

Which keys of the configuration may change while a broker runs, and how such a change gets into force.

The settings are part of the replicated state: every node of the group takes them over when it applies their
record or loads its snapshot, and a new leader has them. They lie over what its own file says.
"""

import difflib
import ipaddress
import logging
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from broker.timer.scheduling import parse_delay_levels

MIB = 1024 * 1024
MESSAGE_BYTES_MAX = 4 * MIB
"""The largest body that maxMessageSize can allow, and that the log takes from the broker itself: a copy for
a retry is written also after maxMessageSize went down. Its entry is larger by headers, topic and properties.
"""

_HOURS = r"^([01]\d|2[0-3])(;([01]\d|2[0-3]))*$"
_NODE_ID = re.compile(r"[A-Za-z]\d{1,9}\Z")
_NAME = re.compile(r"[A-Za-z0-9_.%|-]{1,127}\Z")

Port = Annotated[int, Field(ge=1, le=65535)]


class ConfigError(ValueError):
    """The configuration cannot be used; the text is a sentence for the person who wrote it."""


class Peer(BaseModel):
    """One member of the group: its id and the address its replication traffic goes to."""

    model_config = ConfigDict(frozen=True)

    id: str
    host: str
    port: int


def parse_peers(text: str) -> tuple[Peer, ...]:
    """Read DLedger's peer list `n0-host:port;n1-host:port`.

    Raises ValueError that quotes the first entry it cannot read, or names an id that is there twice.
    """
    peers = tuple(_parse_peer(part.strip()) for part in text.split(";") if part.strip())
    ids = [peer.id for peer in peers]
    for node_id in ids:
        if ids.count(node_id) > 1:
            raise ValueError(f"the peer {node_id} is listed twice")
    return peers


def _parse_peer(text: str) -> Peer:
    node_id, dash, address = text.partition("-")
    host, colon, port = address.rpartition(":")
    if not dash or not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"'{text}' is not of the form n0-host:port")
    if not _NODE_ID.match(node_id):
        raise ValueError(f"the id '{node_id}' is not one letter and a number, like n0")
    return Peer(id=node_id, host=host, port=int(port))


class BrokerConfig(BaseModel):
    """The settings of one node. Field aliases are the keys of the file; sizes are bytes unless the key
    says otherwise, times are in the unit RocketMQ gives the key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    broker_cluster_name: str = Field(default="DefaultCluster", alias="brokerClusterName")
    broker_name: str = Field(default="broker-a", alias="brokerName")
    broker_ip: str = Field(default="127.0.0.1", alias="brokerIP1")
    bind_address: str = Field(default="127.0.0.1", alias="bindAddress")
    listen_port: Port = Field(default=10911, alias="listenPort")
    namesrv_addr: str = Field(default="127.0.0.1:9876", alias="namesrvAddr")
    store_path_root_dir: Path = Field(default=Path("store"), alias="storePathRootDir")
    register_name_server_period_ms: int = Field(
        default=30_000, alias="registerNameServerPeriod", ge=1_000, le=60_000
    )
    region_id: str = Field(default="DefaultRegion", alias="regionId", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    trace_on: bool = Field(default=True, alias="traceOn")
    trace_topic_enable: bool = Field(default=False, alias="traceTopicEnable")
    message_index_enable: bool = Field(default=True, alias="messageIndexEnable")

    enable_dledger: bool = Field(default=True, alias="enableDLegerCommitLog")
    dledger_group: str = Field(default="", alias="dLegerGroup")
    dledger_peers: str = Field(default="", alias="dLegerPeers")
    dledger_self_id: str = Field(default="n0", alias="dLegerSelfId")
    preferred_leader_id: str | None = Field(default=None, alias="preferredLeaderId")
    durability: Literal["persisted", "replicated"] = Field(default="persisted", alias="durability")
    heartbeat_interval_ms: int = Field(default=250, alias="heartbeatIntervalMs", ge=10, le=10_000)
    election_timeout_min_ms: int = Field(default=900, alias="electionTimeoutMinMs", ge=50, le=60_000)
    election_timeout_max_ms: int = Field(default=1_500, alias="electionTimeoutMaxMs", ge=50, le=120_000)
    wait_ack_timeout_ms: int = Field(default=2_500, alias="maxWaitAckTimeMs", ge=100, le=60_000)
    pending_appends_max: int = Field(default=10_000, alias="maxPendingRequestsNum", ge=1, le=1_000_000)
    peer_push_quota: int = Field(default=0, alias="peerPushQuota", ge=0, le=1 << 40)
    """Bytes a second for a peer peerPushThrottlePoint bytes behind; 0: what the producers leave free."""
    peer_push_throttle_point: int = Field(
        default=300 * 1024 * 1024, alias="peerPushThrottlePoint", ge=1, le=1 << 50
    )

    auto_create_topic_enable: bool = Field(default=True, alias="autoCreateTopicEnable")
    auto_create_subscription_group: bool = Field(default=True, alias="autoCreateSubscriptionGroup")
    cluster_topic_enable: bool = Field(default=True, alias="clusterTopicEnable")
    broker_topic_enable: bool = Field(default=True, alias="brokerTopicEnable")
    default_topic_queue_nums: int = Field(default=8, alias="defaultTopicQueueNums", ge=1, le=1_024)
    topics_max: int = Field(default=20_000, alias="topicsMax", ge=1, le=1_000_000)
    groups_max: int = Field(default=20_000, alias="groupsMax", ge=1, le=1_000_000)
    offsets_max: int = Field(default=1_000_000, alias="offsetsMax", ge=1, le=100_000_000)
    reset_marks_max: int = Field(default=100_000, alias="offsetResetMarksMax", ge=1, le=1_000_000)
    """Queues of groups that may wait at once for consumers to hear of an offset reset."""

    max_message_bytes: int = Field(
        default=MESSAGE_BYTES_MAX, alias="maxMessageSize", ge=1, le=MESSAGE_BYTES_MAX
    )
    held_sends_max: int = Field(default=10_000, alias="heldSendsMax", ge=1, le=1_000_000)
    message_delay_level: str = Field(
        default="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", alias="messageDelayLevel"
    )
    timer_wheel_enable: bool = Field(default=True, alias="timerWheelEnable")
    timer_precision_ms: int = Field(default=1_000, alias="timerPrecisionMs", ge=10, le=60_000)
    timer_max_delay_s: int = Field(default=3 * 86_400, alias="timerMaxDelaySec", ge=1, le=10 * 365 * 86_400)
    timer_roll_window_slots: int = Field(default=2 * 86_400, alias="timerRollWindowSlot", ge=2, le=1 << 31)
    timer_congest_num_each_slot: int = Field(
        default=(1 << 31) - 1, alias="timerCongestNumEachSlot", ge=1, le=(1 << 31) - 1
    )
    timer_pending_max: int = Field(default=2_000_000, alias="timerPendingMax", ge=1, le=1 << 31)
    recall_message_enable: bool = Field(default=False, alias="recallMessageEnable")
    store_replies: bool = Field(default=True, alias="storeReplyMessageEnable")
    broker_permission: int = Field(default=6, alias="brokerPermission", ge=0, le=7)
    enable_property_filter: bool = Field(default=False, alias="enablePropertyFilter")
    filter_support_retry: bool = Field(default=False, alias="filterSupportRetry")
    slave_read_enable: bool = Field(default=False, alias="slaveReadEnable")
    memory_ratio_percent: int = Field(default=40, alias="accessMessageInMemoryMaxRatio", ge=0, le=100)
    memory_messages_max: int = Field(
        default=1_024, alias="maxTransferCountOnMessageInMemory", ge=1, le=1_000_000
    )
    memory_bytes_max: int = Field(
        default=256 * 1024, alias="maxTransferBytesOnMessageInMemory", ge=1, le=4 * MIB
    )
    disk_messages_max: int = Field(default=1_024, alias="maxTransferCountOnMessageInDisk", ge=1, le=1_000_000)
    disk_bytes_max: int = Field(default=256 * 1024, alias="maxTransferBytesOnMessageInDisk", ge=1, le=4 * MIB)
    long_polling_enable: bool = Field(default=True, alias="longPollingEnable")
    short_polling_time_ms: int = Field(default=1_000, alias="shortPollingTimeMills", ge=1, le=60_000)
    pop_in_flight_max: int = Field(default=10_000, alias="popInflightMessageThreshold", ge=1, le=1_000_000)
    """Messages of one queue that one group may have out at once."""
    pop_in_flight_total_max: int = Field(default=100_000, alias="popInflightTotal", ge=1, le=10_000_000)
    enable_retry_topic_v2: bool = Field(default=False, alias="enableRetryTopicV2")
    default_message_request_mode: Literal["PULL", "POP"] = Field(
        default="PULL", alias="defaultMessageRequestMode"
    )
    default_pop_share_queue_num: int = Field(default=-1, alias="defaultPopShareQueueNum", ge=-1, le=1_000_000)
    transaction_timeout_ms: int = Field(default=6_000, alias="transactionTimeOut", ge=1, le=86_400_000)
    transaction_check_interval_ms: int = Field(
        default=30_000, alias="transactionCheckInterval", ge=10, le=86_400_000
    )
    transaction_check_max: int = Field(default=15, alias="transactionCheckMax", ge=0, le=250)
    reject_transactions: bool = Field(default=False, alias="rejectTransactionMessage")

    file_reserved_hours: int = Field(default=72, alias="fileReservedTime", ge=1, le=24 * 3650)
    delete_when: str = Field(default="04", alias="deleteWhen", pattern=_HOURS)
    clean_interval_ms: int = Field(default=10_000, alias="cleanResourceInterval", ge=100, le=3_600_000)
    disk_max_used_percent: int = Field(default=75, alias="diskMaxUsedSpaceRatio", ge=10, le=95)
    disk_clean_percent: int = Field(default=85, alias="diskSpaceCleanForciblyRatio", ge=10, le=99)
    disk_full_percent: int = Field(default=90, alias="diskSpaceWarningLevelRatio", ge=10, le=99)
    clean_forcibly_enable: bool = Field(default=True, alias="cleanFileForciblyEnable")
    data_file_bytes: int = Field(default=1024 * MIB, alias="mappedFileSizeCommitLog", ge=8 * MIB, le=2**40)
    index_file_bytes: int = Field(
        default=160 * MIB, alias="mappedFileSizeForEntryIndex", ge=4096, le=2**40, multiple_of=32
    )
    queue_file_bytes: int = Field(
        default=300_000 * 20, alias="mappedFileSizeConsumeQueue", ge=20, le=2**40, multiple_of=20
    )
    entry_cache_bytes: int = Field(default=16 * MIB, alias="entryCacheBytes", ge=0, le=2**40)
    state_snapshot_interval_ms: int = Field(
        default=10_000, alias="stateSnapshotIntervalMs", ge=100, le=3_600_000
    )
    metrics_port: int = Field(default=0, alias="metricsPort", ge=0, le=65535)
    metrics_address: str = Field(default="127.0.0.1", alias="metricsAddress", min_length=1)
    metrics_topics_max: int = Field(default=100, alias="metricsTopicsMax", ge=1, le=10_000)
    slow_put_ms: int = Field(default=500, alias="slowPutMs", ge=0, le=3_600_000)
    log_format: Literal["text", "json"] = Field(default="text", alias="logFormat")

    @field_validator("broker_cluster_name", "broker_name", "dledger_group")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if value and not _NAME.match(value):
            raise ValueError("may hold letters, digits and _ . % | - only, 127 at most")
        return value

    @field_validator("broker_ip")
    @classmethod
    def _check_ip(cls, value: str) -> str:
        try:
            return str(ipaddress.IPv4Address(value))
        except ValueError:
            raise ValueError("must be an IPv4 address that clients can reach, like 10.0.0.1") from None

    @field_validator("preferred_leader_id", mode="after")
    @classmethod
    def _check_preferred(cls, value: str | None) -> str | None:
        """An empty one is none: so a preference set while the broker runs can be taken back."""
        return value or None

    @field_validator("dledger_peers")
    @classmethod
    def _check_peers(cls, value: str) -> str:
        parse_peers(value)
        return value

    @field_validator("message_delay_level")
    @classmethod
    def _check_delay_levels(cls, value: str) -> str:
        parse_delay_levels(value)
        return value

    @field_validator("namesrv_addr")
    @classmethod
    def _check_name_servers(cls, value: str) -> str:
        for address in filter(None, (part.strip() for part in value.split(";"))):
            host, colon, port = address.rpartition(":")
            if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
                raise ValueError(f"'{address}' is not of the form host:port")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> "BrokerConfig":
        if not self.broker_cluster_name or not self.broker_name:
            raise ValueError("brokerClusterName and brokerName may not be empty")
        if self.election_timeout_min_ms > self.election_timeout_max_ms:
            raise ValueError("electionTimeoutMinMs is above electionTimeoutMaxMs")
        if self.heartbeat_interval_ms * 2 > self.election_timeout_min_ms:
            raise ValueError("electionTimeoutMinMs must be at least twice heartbeatIntervalMs")
        if not self.disk_max_used_percent <= self.disk_clean_percent <= self.disk_full_percent:
            keys = "diskMaxUsedSpaceRatio, diskSpaceCleanForciblyRatio, diskSpaceWarningLevelRatio"
            raise ValueError(f"{keys}: none may be above the next")
        if not _NODE_ID.match(self.dledger_self_id):
            raise ValueError(f"dLegerSelfId '{self.dledger_self_id}' is not one letter and a number, like n0")
        ids = [peer.id for peer in self.peers]
        if self.dledger_self_id not in ids:
            raise ValueError(
                f"dLegerSelfId {self.dledger_self_id} is not among dLegerPeers ({', '.join(ids)})"
            )
        if self.preferred_leader_id is not None and self.preferred_leader_id not in ids:
            raise ValueError(f"preferredLeaderId {self.preferred_leader_id} is not among dLegerPeers")
        return self

    @property
    def group(self) -> str:
        """Name of the replication group: dLegerGroup, or the broker's name."""
        return self.dledger_group or self.broker_name

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The group's members; without dLegerPeers this node alone, three ports above listenPort."""
        if self.dledger_peers:
            return parse_peers(self.dledger_peers)
        return (Peer(id=self.dledger_self_id, host=self.bind_address, port=min(self.listen_port + 3, 65535)),)

    @property
    def own_peer(self) -> Peer:
        return next(peer for peer in self.peers if peer.id == self.dledger_self_id)

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.namesrv_addr.split(";") if part.strip())

    @property
    def broker_address(self) -> str:
        """host:port that clients connect to."""
        return f"{self.broker_ip}:{self.listen_port}"

    @property
    def follower_broker_id(self) -> int:
        """The id a node that is not the writable leader registers under: n0 → 1, n1 → 2
        (DLedgerRoleChangeHandler).
        """
        return int(self.dledger_self_id[1:]) + 1

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of the day at which old files are deleted."""
        return frozenset(map(int, self.delete_when.split(";")))

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        return parse_delay_levels(self.message_delay_level)

    @property
    def timer_roll_ms(self) -> int:
        """How long a timer message stays in the log before it is written again: old files are deleted."""
        reserved_ms = self.file_reserved_hours * 3_600_000
        return min(self.timer_roll_window_slots * self.timer_precision_ms, reserved_ms // 2)

    def to_properties(self) -> dict[str, str]:
        """Every key with its value in force, as RocketMQ's properties text shows them."""
        values = self.model_dump(mode="json", by_alias=True)
        return {key: _property_text(value) for key, value in values.items() if value is not None}


def _property_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


KNOWN_KEYS: tuple[str, ...] = tuple(
    sorted(field.alias for field in BrokerConfig.model_fields.values() if field.alias is not None)
)


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> BrokerConfig:
    """The configuration of the file (None: defaults) with the `KEY=VALUE` overrides laid over it.

    Raises ConfigError with a sentence that names the file or the key at fault.
    """
    values: dict[str, Any] = {} if path is None else _read_toml(path)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"'{override}' is not of the form KEY=VALUE")
        values[key.strip()] = value.strip()
    return config_from(values)


def config_from(values: Mapping[str, Any]) -> BrokerConfig:
    """Check the keys and build the model. Raises ConfigError."""
    for key in values:
        if key not in KNOWN_KEYS:
            raise ConfigError(_unknown_key(key))
    try:
        return BrokerConfig.model_validate(dict(values), by_alias=True, by_name=False)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(dict(item)) for item in error.errors())) from error


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def _unknown_key(key: str) -> str:
    by_lower = {known.lower(): known for known in KNOWN_KEYS}
    near = [by_lower[name] for name in difflib.get_close_matches(key.lower(), by_lower, n=3, cutoff=0.5)]
    hint = f"; the nearest known keys are {', '.join(near)}" if near else ""
    return f"the key {key} is not known{hint}"


def _sentence(error: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if not key:
        return message
    return f"{key} = {error['input']!r}: {message}"


RUNTIME_KEYS: Final = frozenset(
    {
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "cleanFileForciblyEnable",
        "cleanResourceInterval",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "enablePropertyFilter",
        "fileReservedTime",
        "filterSupportRetry",
        "groupsMax",
        "heldSendsMax",
        "longPollingEnable",
        "maxMessageSize",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferCountOnMessageInMemory",
        "offsetResetMarksMax",
        "offsetsMax",
        "preferredLeaderId",
        "rejectTransactionMessage",
        "shortPollingTimeMills",
        "stateSnapshotIntervalMs",
        "topicsMax",
        "traceOn",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
    }
)
"""Those that are read at each use, or taken over by who made something of them
(ReplicatedState.on_settings_changed). All others are read once, when what they rule is made.
"""

logger = logging.getLogger(__name__)


class FixedKeyError(ValueError):
    """The key is known, but cannot change while the broker runs; the text is a sentence for the operator."""


def check_settings(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Raises FixedKeyError, and ConfigError for an unknown key or a value out of bounds."""
    _changed(config, settings)
    for key in settings:
        if key not in RUNTIME_KEYS:
            raise FixedKeyError(
                f"{key} is fixed while the broker runs: set it in the configuration file of each node; "
                f"what can change is {', '.join(sorted(RUNTIME_KEYS))}"
            )


def take_settings(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Put the settings into force. One this node cannot use is logged and left out: it may come from a
    later version, and a node that stops for it would be worse.
    """
    for key, value in settings.items():
        try:
            check_settings(config, {key: value})
        except ValueError as error:
            logger.warning("setting %s=%.64s is not used: %s", key, value, error)
            continue
        name = _FIELD_OF[key]
        # The model is frozen for its readers; this is the one place that changes it.
        config.__dict__[name] = getattr(_changed(config, {key: value}), name)


_FIELD_OF: Final = {field.alias: name for name, field in BrokerConfig.model_fields.items()}


def _changed(config: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    unset = {key: value for key, value in config.model_dump(by_alias=True).items() if value is not None}
    return config_from({**unset, **settings})
