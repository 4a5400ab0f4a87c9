"""The broker's configuration: one frozen model whose keys are RocketMQ's own broker.conf names.

A configuration is a TOML file of plain `key = value` pairs, and `KEY=VALUE` overrides on top of it. A key
that means nothing here is refused, with the nearest known keys named, so that a misspelt limit is not
silently the default.

Settings changed while the broker runs are part of the replicated state: every node of the group takes them
over when it applies their record or loads its snapshot. They lie over what its own file says.
"""

import contextlib
import difflib
import ipaddress
import logging
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from broker.timer.scheduling import parse_delay_levels
from dledger.core.membership import VOTERS_MAX
from remoting.client.tls import ClientTls
from remoting.quotas import Network, Quota, QuotaRules, networks
from remoting.tls import ClientAuth, ServerTlsSettings, TlsMode
from sockets.addresses import is_loopback
from sockets.tls import TlsFiles, TlsSettingsError

KIB, MIB = 1024, 1024 * 1024
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
MESSAGE_BYTES_MAX = 4 * MIB
"""The largest body that maxMessageSize can allow, and that the log takes from the broker itself: a copy for
a retry is written also after maxMessageSize went down. Its entry is larger by headers, topic and properties.
"""

_HOURS = r"^([01]\d|2[0-3])(;([01]\d|2[0-3]))*$"
_CODES = r"^( *\d{1,6} *(, *\d{1,6} *)*)?$"
_NODE_ID = re.compile(r"[A-Za-z]\d{1,9}\Z")
_NAME = re.compile(r"[A-Za-z0-9_.%|-]{1,127}\Z")

Port = Annotated[int, Field(ge=1, le=65535)]
_LIVE: Final = "live"
_T = TypeVar("_T")
Live = Annotated[_T, _LIVE]
"""A key that may change while the broker runs: read at each use, or taken over by who made something of it
(ReplicatedState.on_settings_changed). All others are read once, when what they rule is made.
"""


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

    Raises ValueError that quotes the first entry it cannot read, or names an id that is there twice, or says
    that there are too many.
    """
    peers = tuple(_parse_peer(part.strip()) for part in text.split(";") if part.strip())
    ids = [peer.id for peer in peers]
    for node_id in ids:
        if ids.count(node_id) > 1:
            raise ValueError(f"the peer {node_id} is listed twice")
    if len(peers) > VOTERS_MAX:
        raise ValueError(f"it lists {len(peers)} members; a group has at most {VOTERS_MAX} that vote")
    return peers


def _parse_peer(text: str) -> Peer:
    node_id, dash, address = text.partition("-")
    host, colon, port = address.rpartition(":")
    if not dash or not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"'{text}' is not of the form n0-host:port")
    if not _NODE_ID.match(node_id):
        raise ValueError(f"the id '{node_id}' is not one letter and a number, like n0")
    return Peer(id=node_id, host=host, port=int(port))


ACCOUNT_KEYS: Final = {
    "init_authentication_user": ("username", "password"),
    "inner_client_credentials": ("accessKey", "secretKey"),
}
"""What the JSON of these fields has: a name and a secret."""


def read_account(text: SecretStr, name_key: str, secret_key: str) -> tuple[str, str] | None:
    """The name and the secret in a key's JSON; None when the key is empty. Raises ValueError, without the
    value in its text.
    """
    if not text.get_secret_value():
        return None
    try:
        data = orjson.loads(text.get_secret_value())
        name, secret = data[name_key], data[secret_key]
        is_account = isinstance(name, str) and isinstance(secret, str) and name.strip() and secret.strip()
    except (ValueError, KeyError, TypeError):
        is_account = False
    if not is_account:
        raise ValueError(f'is not JSON like {{"{name_key}": "…", "{secret_key}": "…"}}') from None
    return name, secret


LEADER_BROKER_ID: Final = 0
"""Under which the writable leader registers."""


def follower_broker_id(node_id: str) -> int:
    """Under which every other member registers: n0 → 1, n1 → 2 (DLedgerRoleChangeHandler)."""
    return int(node_id[1:]) + 1


class BrokerConfig(BaseModel):
    """The settings of one node. Field aliases are the keys of the file; sizes are bytes unless the key
    says otherwise, times are in the unit RocketMQ gives the key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    _source: Path | None = PrivateAttr(default=None)

    broker_cluster_name: str = Field(default="DefaultCluster", alias="brokerClusterName")
    """Cluster the broker registers in."""
    broker_name: str = Field(default="broker-a", alias="brokerName")
    """Name all nodes of the group share."""
    broker_ip: str = Field(default="127.0.0.1", alias="brokerIP1")
    """IPv4 address that clients get with routes; also in every message id."""
    bind_address: str = Field(default="127.0.0.1", alias="bindAddress")
    """Address listened on, for clients and, unless `replicationBindAddress` is set, replication."""
    listen_port: Port = Field(default=10911, alias="listenPort")
    """Port for clients."""
    namesrv_addr: str = Field(default="127.0.0.1:9876", alias="namesrvAddr")
    """Name servers, separated by `;`; empty: none."""
    store_path_root_dir: Path = Field(default=Path("store"), alias="storePathRootDir")
    """Folder of everything the node keeps; one process at a time."""
    register_period_ms: int = Field(default=30_000, alias="registerNameServerPeriod", ge=1_000, le=60_000)
    """Time between registrations."""
    region_id: str = Field(default="DefaultRegion", alias="regionId", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """Given to producers with every answer, and in every message (MSG_REGION)."""
    trace_on: Live[bool] = Field(default=True, alias="traceOn")
    """Likewise (TRACE_ON): a consumer that traces leaves out messages without it."""
    trace_topic_enable: bool = Field(default=False, alias="traceTopicEnable")
    """RMQ_SYS_TRACE_TOPIC is there from the start; otherwise its first message creates it."""
    message_index_enable: bool = Field(default=True, alias="messageIndexEnable")
    """Messages are found by key and id (12); see docs/retention.md#queries-by-key-id-and-time."""

    enable_dledger: bool = Field(default=True, alias="enableDLegerCommitLog")
    """false: a plain log of one node, in RocketMQ's CommitLog format."""
    dledger_group: str = Field(default="", alias="dLegerGroup")
    """Name of the replica group; empty: `brokerName`."""
    dledger_peers: str = Field(default="", alias="dLegerPeers")
    """First members and their replication addresses: `n0-host:port;…`; empty: this node alone, at
    `listenPort` + 3. Once members were changed, those of the log count (docs/members.md)."""
    dledger_self_id: str = Field(default="n0", alias="dLegerSelfId")
    """This member; one letter and a number."""
    dledger_join: bool = Field(default=False, alias="dLegerJoin")
    """true: this member joins a running group. It starts empty and without a vote, and waits until it is
    added (docs/members.md); `dLegerPeers` has it and the members that it asks. Of no meaning once it is one.
    """
    replication_bind_address: str = Field(default="", alias="replicationBindAddress")
    """Address listened on for the other members; empty: `bindAddress`, but without certificates one of
    loopback.
    """
    replication_tls_cert: Path | None = Field(default=None, alias="replicationTlsCertPath")
    """This member's certificate (PEM), which names it: `ledgermq://<group>/<id>`. See docs/dledger.md."""
    replication_tls_key: Path | None = Field(default=None, alias="replicationTlsKeyPath")
    """Its private key (PEM)."""
    replication_tls_ca: Path | None = Field(default=None, alias="replicationTlsCaPath")
    """Certificates (PEM) of the authorities that may have signed those of the members."""
    replication_tls_age_max_ms: int = Field(
        default=600_000, alias="replicationTlsAgeMaxMs", ge=1_000, le=DAY_MS
    )
    """Age up to which a connection between members is kept: then changed certificates are in force."""
    preferred_leader_id: Live[str | None] = Field(default=None, alias="preferredLeaderId")
    """Member that leadership is handed to when it can be; empty: none."""
    durability: Literal["persisted", "replicated"] = Field(default="persisted", alias="durability")
    """`persisted`: acknowledged = on a majority's disks; `replicated`: in its page caches."""
    heartbeat_interval_ms: int = Field(default=250, alias="heartbeatIntervalMs", ge=10, le=10_000)
    """A leader sends each follower something at least this often."""
    election_timeout_min_ms: int = Field(default=900, alias="electionTimeoutMinMs", ge=50, le=60_000)
    """Least silence after which a follower stands for election; at least two heartbeats."""
    election_timeout_max_ms: int = Field(default=1_500, alias="electionTimeoutMaxMs", ge=50, le=120_000)
    """Most of it: each follower draws its own."""
    wait_ack_timeout_ms: int = Field(default=2_500, alias="maxWaitAckTimeMs", ge=100, le=60_000)
    """A send without a majority after this is answered with an error."""
    pending_appends_max: int = Field(default=10_000, alias="maxPendingRequestsNum", ge=1, le=10**6)
    """Messages that may wait for their majority."""
    peer_push_quota: int = Field(default=0, alias="peerPushQuota", ge=0, le=1 << 40)
    """Bytes a second for a member that is far behind; 0: what the producers leave free, at least 20 MiB."""
    peer_push_throttle_point: int = Field(default=300 * MIB, alias="peerPushThrottlePoint", ge=1, le=1 << 50)
    """With a quota: how many bytes behind is far."""

    auto_create_topic_enable: Live[bool] = Field(default=True, alias="autoCreateTopicEnable")
    """A send may create its topic."""
    auto_create_subscription_group: Live[bool] = Field(default=True, alias="autoCreateSubscriptionGroup")
    """A heartbeat may create its group."""
    cluster_topic_enable: bool = Field(default=True, alias="clusterTopicEnable")
    """The topic named like the cluster can be read and written."""
    broker_topic_enable: bool = Field(default=True, alias="brokerTopicEnable")
    """The topic named like the broker can be read and written."""
    default_topic_queue_nums: int = Field(default=8, alias="defaultTopicQueueNums", ge=1, le=1_024)
    """Queues of TBW102, and so the most a created topic gets."""
    topics_max: Live[int] = Field(default=20_000, alias="topicsMax", ge=1, le=10**6)
    """Topics there may be; a new one beyond them is refused with 13."""
    groups_max: Live[int] = Field(default=20_000, alias="groupsMax", ge=1, le=10**6)
    """Subscription groups there may be; likewise."""
    offsets_max: Live[int] = Field(default=1_000_000, alias="offsetsMax", ge=1, le=100_000_000)
    """Offsets of groups in queues there may be; likewise."""
    reset_marks_max: Live[int] = Field(default=100_000, alias="offsetResetMarksMax", ge=1, le=10**6)
    """Queues in which groups may wait to hear of an offset reset; one beyond them is refused with 1."""

    max_message_bytes: Live[int] = Field(
        default=MESSAGE_BYTES_MAX, alias="maxMessageSize", ge=1, le=MESSAGE_BYTES_MAX
    )
    """Bytes of a body as sent, also of a whole batch, without headers, topic and properties."""
    held_sends_max: Live[int] = Field(default=10_000, alias="heldSendsMax", ge=1, le=10**6)
    """Sends that may wait for the creation of their topics."""
    message_delay_level: str = Field(
        default="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", alias="messageDelayLevel"
    )
    """Delay of each level."""
    timer_wheel_enable: bool = Field(default=True, alias="timerWheelEnable")
    """Messages may be for any time (TIMER_*); see docs/delays.md."""
    timer_precision_ms: int = Field(default=1_000, alias="timerPrecisionMs", ge=10, le=60_000)
    """How late timer messages come at most; they never come early."""
    timer_max_delay_s: int = Field(default=3 * 86_400, alias="timerMaxDelaySec", ge=1, le=10 * 365 * 86_400)
    """Furthest time ahead, in seconds."""
    timer_roll_window_slots: int = Field(default=2 * 86_400, alias="timerRollWindowSlot", ge=2, le=1 << 31)
    """Times `timerPrecisionMs`: a message that waits longer is written again, as old files are deleted."""
    timer_slot_max: int = Field(default=2**31 - 1, alias="timerCongestNumEachSlot", ge=1, le=2**31 - 1)
    """Timer messages that may wait for the same time."""
    timer_pending_max: int = Field(default=2_000_000, alias="timerPendingMax", ge=1, le=1 << 31)
    """Timer messages that may wait; a further one is answered 1."""
    recall_message_enable: bool = Field(default=False, alias="recallMessageEnable")
    """Senders may take a waiting timer message back (370)."""
    store_replies: bool = Field(default=True, alias="storeReplyMessageEnable")
    """Replies are also stored in `<cluster>_REPLY_TOPIC`; see docs/consuming.md#request-and-reply."""
    broker_permission: Live[int] = Field(default=6, alias="brokerPermission", ge=0, le=7)
    """4: may only be read, 2: only be written; goes to clients with every topic's route."""
    refuse_messages: Live[bool] = Field(default=False, alias="refuseMessages")
    """Sends are answered 14, and stock clients try another broker; for a group that is about to be removed.
    Retries of consumers are still taken.
    """
    enable_property_filter: Live[bool] = Field(default=False, alias="enablePropertyFilter")
    """Consumers may filter by SQL92 expressions over properties; as in RocketMQ not by default."""
    filter_support_retry: Live[bool] = Field(default=False, alias="filterSupportRetry")
    """An SQL92 subscription of a retry topic filters by the topic each message comes from."""
    slave_read_enable: bool = Field(default=False, alias="slaveReadEnable")
    """Consumers that are far behind, or in the zone of a follower, are sent to it; see docs/consuming.md."""
    zone: str = Field(default="", alias="zone", max_length=64)
    """Where this node is: a rack, a data center. Consumers that name the same zone pull from it."""
    memory_ratio_percent: int = Field(default=40, alias="accessMessageInMemoryMaxRatio", ge=0, le=100)
    """Percent of the machine's memory: the log's last bytes that are taken to be in it."""
    memory_messages_max: Live[int] = Field(
        default=1_024, alias="maxTransferCountOnMessageInMemory", ge=1, le=10**6
    )
    """Messages of one answer to a pull or POP, at most."""
    memory_bytes_max: Live[int] = Field(
        default=256 * KIB, alias="maxTransferBytesOnMessageInMemory", ge=1, le=4 * MIB
    )
    """Their bytes; a client that names a maximum itself gets up to twice as many."""
    disk_messages_max: Live[int] = Field(
        default=1_024, alias="maxTransferCountOnMessageInDisk", ge=1, le=10**6
    )
    """Messages of an answer that begins before what `accessMessageInMemoryMaxRatio` reaches."""
    disk_bytes_max: Live[int] = Field(
        default=256 * KIB, alias="maxTransferBytesOnMessageInDisk", ge=1, le=4 * MIB
    )
    """Their bytes."""
    long_polling_enable: Live[bool] = Field(default=True, alias="longPollingEnable")
    """A pull without messages is held for the time in the request."""
    short_polling_time_ms: Live[int] = Field(default=1_000, alias="shortPollingTimeMills", ge=1, le=60_000)
    """With `longPollingEnable = false`: how long it is held."""
    pop_in_flight_max: int = Field(default=10_000, alias="popInflightMessageThreshold", ge=1, le=10**6)
    """Messages of one queue that one group may have out by POP; beyond 209. See docs/pop.md."""
    pop_in_flight_total_max: int = Field(default=100_000, alias="popInflightTotal", ge=1, le=10_000_000)
    """Messages that all groups may have out by POP."""
    enable_retry_topic_v2: bool = Field(default=False, alias="enableRetryTopicV2")
    """Messages that come back lie in `%RETRY%group+topic`, not `%RETRY%group_topic`."""
    priority_order_asc: Live[bool] = Field(default=True, alias="priorityOrderAsc")
    """POP hands out topics of type PRIORITY from the last queue, the highest priority; false: the first."""
    default_request_mode: Literal["PULL", "POP"] = Field(default="PULL", alias="defaultMessageRequestMode")
    """How groups consume whose queues the broker assigns, where it is not set."""
    default_pop_share_queue_num: int = Field(default=-1, alias="defaultPopShareQueueNum", ge=-1, le=10**6)
    """With POP: the share number of such groups; -1: all members pop all queues. See docs/pop.md."""
    transaction_timeout_ms: Live[int] = Field(default=6_000, alias="transactionTimeOut", ge=1, le=DAY_MS)
    """Age from which the producer of an open transaction is asked about it."""
    transaction_check_ms: Live[int] = Field(
        default=30_000, alias="transactionCheckInterval", ge=10, le=DAY_MS
    )
    """Time between two rounds of asking."""
    transaction_check_max: Live[int] = Field(default=15, alias="transactionCheckMax", ge=0, le=250)
    """How often it is asked before the message is put aside."""
    reject_transactions: Live[bool] = Field(default=False, alias="rejectTransactionMessage")
    """true: half messages are answered 16 NO_PERMISSION."""

    file_reserved_hours: Live[int] = Field(default=72, alias="fileReservedTime", ge=1, le=24 * 3650)
    """Hours that messages are kept at least; see docs/retention.md."""
    delete_when: Live[str] = Field(default="04", alias="deleteWhen", pattern=_HOURS)
    """Hours of the day, separated by `;`, at which old files are deleted."""
    clean_interval_ms: Live[int] = Field(default=10_000, alias="cleanResourceInterval", ge=100, le=HOUR_MS)
    """Time between two looks at what may be deleted."""
    disk_max_used_percent: Live[int] = Field(default=75, alias="diskMaxUsedSpaceRatio", ge=10, le=95)
    """Percent; on a fuller disk old files are deleted at any hour, whether followers have them or not."""
    disk_clean_percent: Live[int] = Field(default=85, alias="diskSpaceCleanForciblyRatio", ge=10, le=99)
    """Percent; on a fuller disk a node deletes its oldest files, old or not."""
    disk_full_percent: int = Field(default=90, alias="diskSpaceWarningLevelRatio", ge=10, le=99)
    """Percent; a node with a fuller disk takes no messages."""
    clean_forcibly_enable: Live[bool] = Field(default=True, alias="cleanFileForciblyEnable")
    """false: files that are not old are never deleted."""
    data_file_bytes: int = Field(default=1024 * MIB, alias="mappedFileSizeCommitLog", ge=8 * MIB, le=2**40)
    """Bytes of a data file; the same on all nodes."""
    index_file_bytes: int = Field(
        default=160 * MIB, alias="mappedFileSizeForEntryIndex", ge=4096, le=2**40, multiple_of=32
    )
    """Bytes of an index file of a group's log."""
    queue_file_bytes: int = Field(
        default=300_000 * 20, alias="mappedFileSizeConsumeQueue", ge=20, le=2**40, multiple_of=20
    )
    """Bytes of a consume queue file: 300,000 units of 20."""
    entry_cache_bytes: int = Field(default=16 * MIB, alias="entryCacheBytes", ge=0, le=2**40)
    """Newest entries of a group's log kept in memory."""
    state_snapshot_interval_ms: Live[int] = Field(
        default=10_000, alias="stateSnapshotIntervalMs", ge=100, le=HOUR_MS
    )
    """Time between snapshots of a changed state."""
    authentication_enabled: Live[bool] = Field(default=False, alias="authenticationEnabled")
    """Each request must be signed by a user; see docs/security.md."""
    authorization_enabled: Live[bool] = Field(default=False, alias="authorizationEnabled")
    """Likewise, and its user needs the right to do it."""
    authentication_whitelist: Live[str] = Field(default="", alias="authenticationWhitelist", pattern=_CODES)
    """Request codes, separated by `,`, that need no signature."""
    authorization_whitelist: Live[str] = Field(default="", alias="authorizationWhitelist", pattern=_CODES)
    """Request codes, separated by `,`, that every user may send."""
    acl_enable: bool = Field(default=False, alias="aclEnable")
    """Access control of RocketMQ 4 by the accounts of `aclFile`, while the two of RocketMQ 5 are off."""
    acl_file: str = Field(default="", alias="aclFile")
    """`plain_acl.yml` of this node; empty: `config/plain_acl.yml` in `storePathRootDir`."""
    migrate_auth: bool = Field(default=False, alias="migrateAuthFromV1Enabled")
    """The leader makes users and policies of the accounts of `aclFile` that are no users yet."""
    init_authentication_user: SecretStr = Field(default=SecretStr(""), alias="initAuthenticationUser")
    """A super user that is always there: JSON with `username` and `password`."""
    inner_client_credentials: SecretStr = Field(
        default=SecretStr(""), alias="innerClientAuthenticationCredentials"
    )
    """Nodes sign their own requests as this super user: JSON with `accessKey` and `secretKey`."""
    auth_key_path: str = Field(default="", alias="authKeyPath")
    """File with the key that encrypts passwords in the log: 32 bytes as base64, the same on all nodes."""
    address_requests: Live[int] = Field(default=100_000, alias="addressRequestsPerSecond", ge=0, le=10**9)
    """Requests of one client address; 0: unlimited. See docs/security.md#quotas."""
    address_bytes: Live[int] = Field(default=1024 * MIB, alias="addressBytesPerSecond", ge=0, le=2**50)
    """Bytes a second to and from it; likewise."""
    address_connections: Live[int] = Field(default=4_000, alias="addressConnectionsMax", ge=0, le=10**6)
    """Its connections; likewise."""
    address_in_flight: Live[int] = Field(default=100_000, alias="addressInFlightMax", ge=0, le=10**9)
    """Its requests that are not answered, held pulls among them; likewise."""
    user_requests: Live[int] = Field(default=200_000, alias="userRequestsPerSecond", ge=0, le=10**9)
    """Requests of one user of access control, from all addresses; 0: unlimited."""
    user_bytes: Live[int] = Field(default=2048 * MIB, alias="userBytesPerSecond", ge=0, le=2**50)
    """Bytes a second to and from it; likewise."""
    user_connections: Live[int] = Field(default=8_000, alias="userConnectionsMax", ge=0, le=10**6)
    """Its connections; likewise."""
    user_in_flight: Live[int] = Field(default=200_000, alias="userInFlightMax", ge=0, le=10**9)
    """Its requests that are not answered; likewise."""
    quotas_on_loopback: Live[bool] = Field(default=False, alias="quotasOnLoopback")
    """true: the quotas are also for clients of this machine."""
    quota_exempt: Live[str] = Field(default="", alias="quotaExemptAddresses")
    """Addresses and networks, separated by `,`, whose clients have no quotas; those of the other members, as
    numbers in `dLegerPeers`, have none either.
    """
    grpc_endpoints: Live[str] = Field(default="", alias="grpcEndpointAddresses")
    """Addresses and networks, separated by `,`, of gRPC endpoints: the addresses that they name for their
    clients count for quotas. Where access control is on, they sign as the nodes' account instead.
    """
    metrics_port: int = Field(default=0, alias="metricsPort", ge=0, le=65535)
    """Port of `/metrics` for Prometheus; 0: none. See docs/monitoring.md#metrics."""
    metrics_address: str = Field(default="127.0.0.1", alias="metricsAddress", min_length=1)
    """Address of that port; every client that reaches it can read names of topics and groups."""
    ready_lag_max_ms: Live[int] = Field(default=10_000, alias="readyLagMaxMs", ge=100, le=HOUR_MS)
    """A follower is ready (`/ready` on that port) if it shows all that was acknowledged up to so long ago."""
    metrics_topics_max: int = Field(default=100, alias="metricsTopicsMax", ge=1, le=10_000)
    """Topics, and (topic, group) pairs, that are shown by name there; the others as one."""
    slow_put_ms: int = Field(default=500, alias="slowPutMs", ge=0, le=HOUR_MS)
    """A put that takes so long is logged, with its steps; 0: none is."""
    log_format: Literal["text", "json"] = Field(default="text", alias="logFormat")
    """`json`: each line of the log is an object; `--log-format` wins. See docs/monitoring.md#logs."""

    tls_mode: TlsMode | None = Field(default=None, alias="tlsMode")
    """TLS on `listenPort`: disabled, permissive (plain text too), enforcing. Not set: permissive with
    `tlsCertPath`, else disabled; see docs/broker.md#tls-for-clients."""
    tls_certificate: Path | None = Field(default=None, alias="tlsCertPath")
    """The node's certificate, those of intermediate authorities behind it (PEM)."""
    tls_key: Path | None = Field(default=None, alias="tlsKeyPath")
    """Its private key, without a password; not set: it is in `tlsCertPath` too."""
    tls_authorities: Path | None = Field(default=None, alias="tlsTrustCertPath")
    """Authorities of the others' certificates (PEM): clients, name servers, nodes of the group."""
    tls_client_auth: ClientAuth = Field(default="none", alias="tlsClientAuth")
    """Certificates of clients: none, optional (verified if there is one), require."""
    tls_enable: bool = Field(default=False, alias="tlsEnable")
    """true: requests to name servers and to other nodes of the group leave over TLS."""
    namesrv_tls_enable: bool = Field(default=False, alias="namesrvTlsEnable")
    """true: requests to name servers leave over TLS with the certificate for replication, by which they may
    know the node (docs/name_server.md#who-may-register-what)."""
    tls_check_host_name: bool = Field(default=True, alias="tlsCheckHostName")
    """Of these, the certificates must be for the name or address that is connected to."""

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

    @field_validator("tls_mode", "tls_certificate", "tls_key", "tls_authorities", mode="before")
    @classmethod
    def _check_tls(cls, value: object) -> object:
        """An empty one is none, so that an override can take it back."""
        return None if value == "" else value

    @field_validator("preferred_leader_id", mode="after")
    @classmethod
    def _check_preferred(cls, value: str | None) -> str | None:
        """An empty one is none: so a preference set while the broker runs can be taken back."""
        return value or None

    @field_validator("dledger_peers", "message_delay_level")
    @classmethod
    def _check_list(cls, value: str, info: Any) -> str:
        (parse_peers if info.field_name == "dledger_peers" else parse_delay_levels)(value)
        return value

    @field_validator("namesrv_addr")
    @classmethod
    def _check_name_servers(cls, value: str) -> str:
        for address in filter(None, (part.strip() for part in value.split(";"))):
            host, colon, port = address.rpartition(":")
            if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
                raise ValueError(f"'{address}' is not of the form host:port")
        return value

    @field_validator("quota_exempt", "grpc_endpoints")
    @classmethod
    def _check_networks(cls, value: str) -> str:
        networks(value)
        return value

    @field_validator("init_authentication_user", "inner_client_credentials")
    @classmethod
    def _check_account(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        read_account(value, *ACCOUNT_KEYS[str(info.field_name)])
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
        if self.dledger_join and (not self.enable_dledger or len(ids) < 2):
            raise ValueError(
                "dLegerJoin needs a group: dLegerPeers with this member and at least one that is there "
                "already"
            )
        try:
            self.server_tls.check()
        except TlsSettingsError as error:
            raise ValueError(
                f"tlsMode, tlsCertPath, tlsKeyPath, tlsTrustCertPath, tlsClientAuth: {error}"
            ) from None
        if self.server_tls.mode_in_force == "enforcing" and not self.tls_enable and len(ids) > 1:
            raise ValueError(
                "tlsMode enforcing needs tlsEnable = true: nodes of a group send requests to one another"
            )
        if self._replication_files.count(None) not in (0, len(self._replication_files)):
            keys = "replicationTlsCertPath, replicationTlsKeyPath, replicationTlsCaPath"
            raise ValueError(f"{keys}: all three are needed, or none")
        if self.namesrv_tls_enable and self.replication_tls is None and self.tls_certificate is None:
            raise ValueError(
                "namesrvTlsEnable needs a certificate: replicationTlsCertPath with its key and authorities, "
                "or tlsCertPath"
            )
        return self

    @property
    def source(self) -> Path | None:
        """The file that the configuration was read from; None: there is none."""
        return self._source

    @property
    def init_user(self) -> tuple[str, str] | None:
        """Name and password of `initAuthenticationUser`."""
        return read_account(self.init_authentication_user, *ACCOUNT_KEYS["init_authentication_user"])

    @property
    def inner_account(self) -> tuple[str, str] | None:
        """Name and secret that this node signs its own requests with."""
        return read_account(self.inner_client_credentials, *ACCOUNT_KEYS["inner_client_credentials"])

    @property
    def acl_path(self) -> Path:
        return Path(self.acl_file) if self.acl_file else self.store_path_root_dir / "config/plain_acl.yml"

    @property
    def checks_signatures(self) -> bool:
        """What a user may do can be asked only of one who has proved its name."""
        return self.authentication_enabled or self.authorization_enabled

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
    def _replication_files(self) -> tuple[Path | None, ...]:
        return self.replication_tls_cert, self.replication_tls_key, self.replication_tls_ca

    @property
    def replication_tls(self) -> TlsFiles | None:
        """The files with which the members know each other; None: every process is believed."""
        return None if None in self._replication_files else TlsFiles(*self._replication_files)

    @property
    def replication_host(self) -> str:
        """The address listened on for the other members."""
        if self.replication_bind_address:
            return self.replication_bind_address
        is_of_this_machine = all(is_loopback(host) for host in self.other_hosts)
        if self.replication_tls is None and is_of_this_machine and not is_loopback(self.bind_address):
            return "127.0.0.1"
        return self.bind_address

    @property
    def other_hosts(self) -> list[str]:
        """Where the other members are, as dLegerPeers says."""
        return [peer.host for peer in self.peers if peer.id != self.dledger_self_id]

    def quota_rules(self, member_hosts: Iterable[str]) -> QuotaRules:
        """The quotas of clients. `member_hosts`: the other members, which forward the requests of many."""
        return QuotaRules(
            Quota(
                self.address_requests, self.address_bytes, self.address_connections, self.address_in_flight
            ),
            Quota(self.user_requests, self.user_bytes, self.user_connections, self.user_in_flight),
            self.quotas_on_loopback,
            (*networks(self.quota_exempt), *_member_networks(member_hosts)),
            networks(self.grpc_endpoints),
        )

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.namesrv_addr.split(";") if part.strip())

    @property
    def server_tls(self) -> ServerTlsSettings:
        """TLS on `listenPort`."""
        return ServerTlsSettings(
            self.tls_mode, self.tls_certificate, self.tls_key, self.tls_authorities, self.tls_client_auth
        )

    @property
    def _own_tls(self) -> ClientTls:
        return ClientTls(self.tls_authorities, self.tls_certificate, self.tls_key, self.tls_check_host_name)

    @property
    def client_tls(self) -> ClientTls | None:
        """TLS towards other nodes; None: plain text."""
        return self._own_tls if self.tls_enable else None

    @property
    def namesrv_tls(self) -> ClientTls | None:
        """TLS towards name servers; None: plain text. With the member's certificate their authorities are the
        group's, unless `tlsTrustCertPath` names others.
        """
        member = self.replication_tls
        if not self.namesrv_tls_enable:
            return self.client_tls
        if member is None:
            return self._own_tls
        authorities = self.tls_authorities or member.authorities
        return ClientTls(authorities, member.certificate, member.key, self.tls_check_host_name)

    @property
    def broker_address(self) -> str:
        """host:port that clients connect to."""
        return f"{self.broker_ip}:{self.listen_port}"

    @property
    def follower_broker_id(self) -> int:
        """The id under which this node registers while it is not the writable leader."""
        return follower_broker_id(self.dledger_self_id)

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


def _member_networks(hosts: Iterable[str]) -> Iterator[Network]:
    for host in hosts:
        # Those of loopback are the clients of this machine, too.
        if not is_loopback(host):
            with contextlib.suppress(ValueError):  # a name
                yield from networks(host)


_FIELD_OF: Final = {field.alias: name for name, field in BrokerConfig.model_fields.items() if field.alias}
_SECRET_KEYS: Final = frozenset(str(BrokerConfig.model_fields[name].alias) for name in ACCOUNT_KEYS)
KNOWN_KEYS: Final = tuple(sorted(_FIELD_OF))
RUNTIME_KEYS: Final = frozenset(
    key for key, name in _FIELD_OF.items() if _LIVE in BrokerConfig.model_fields[name].metadata
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
    config = config_from(values)
    config._source = path
    _require_known_members(config)
    return config


def _require_known_members(config: BrokerConfig) -> None:
    """Raises ConfigError for replication beyond this machine without certificates: each host that reaches
    such a port could remove the log of the whole group.
    """
    if not config.enable_dledger or config.replication_tls is not None:
        return
    wide = [
        f"the member's address {host} in dLegerPeers" for host in config.other_hosts if not is_loopback(host)
    ]
    if not is_loopback(config.replication_host):
        wide.append(f"the address {config.replication_host} for replication")
    if wide:
        raise ConfigError(
            f"{wide[0]} is beyond this machine, and replication has no certificates: set "
            "replicationTlsCertPath, replicationTlsKeyPath and replicationTlsCaPath (`ledgermq cluster init` "
            "makes the files), or use addresses of loopback"
        )


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
    if key in _SECRET_KEYS:
        return f"{key} {message}"
    return f"{key} = {error['input']!r}: {message}"


logger = logging.getLogger(__name__)


class FixedKeyError(ValueError):
    """The key is known, but cannot change while the broker runs; the text is a sentence for the operator."""


def check_settings(config: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    """The configuration with these settings. Raises FixedKeyError, and ConfigError for an unknown key or a
    value out of bounds.
    """
    changed = _changed(config, settings)
    for key in settings:
        if key not in RUNTIME_KEYS:
            raise FixedKeyError(
                f"{key} is fixed while the broker runs: set it in the configuration file of each node; "
                f"what can change is {', '.join(sorted(RUNTIME_KEYS))}"
            )
    return changed


def take_settings(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Put the settings into force. One this node cannot use is logged and left out: it may come from a
    later version, and a node that stops for it would be worse.
    """
    for key, value in settings.items():
        try:
            changed = check_settings(config, {key: value})
        except ValueError as error:
            logger.warning("setting %s=%.64s is not used: %s", key, value, error)
            continue
        name = _FIELD_OF[key]
        # The model is frozen for its readers; this is the one place that changes it.
        config.__dict__[name] = getattr(changed, name)


def _changed(config: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    unset = {key: value for key, value in config.model_dump(by_alias=True).items() if value is not None}
    return config_from({**unset, **settings})
