"""Requests of RocketMQ's broker that are not supported: each is answered 3 REQUEST_CODE_NOT_SUPPORTED with a
sentence that names the reason and what to do instead.

Codes that a feature handles are not included.
"""

from collections.abc import Container, Mapping
from functools import partial
from typing import Final

from remoting.codes import RequestCode as Code
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.router import Handlers

NO_ACL = (
    "LedgerMQ has no users and no access control lists: every client that reaches the port may do "
    "everything, so restrict access by a firewall or a proxy"
)
NO_COLD_DATA = "LedgerMQ does not slow down readers of cold data, so there is no group to set a limit for"
NO_ROCKSDB = "LedgerMQ keeps nothing in RocksDB: topics and groups are in the log, queues in plain files"
NO_CONTAINER = "a LedgerMQ process is one broker: start another with `ledgermq node` or `python -m broker`"

REASONS: Final[Mapping[Code, str]] = {
    Code.QUERY_BROKER_OFFSET: "no client sends this since RocketMQ 3; 30 and 31 answer a queue's offsets",
    Code.UPDATE_AND_CREATE_ACL_CONFIG: NO_ACL,
    Code.DELETE_ACL_CONFIG: NO_ACL,
    Code.GET_BROKER_CLUSTER_ACL_INFO: NO_ACL,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: NO_ACL,
    Code.GET_TIMER_CHECK_POINT: "timers follow from the replicated log; there is no checkpoint to copy",
    Code.GET_TIMER_METRICS: "timers are not counted by topic; GET_BROKER_RUNTIME_INFO has their number",
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: (
        "reading is not forbidden by group and topic: set the group's consumeEnable or the topic's permission"
    ),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: NO_ROCKSDB,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: NO_ROCKSDB,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "there are no static topics: a topic's queues stay in their replica group, whichever node leads it"
    ),
    Code.ADD_BROKER: NO_CONTAINER,
    Code.REMOVE_BROKER: NO_CONTAINER,
    Code.RESET_MASTER_FLUSH_OFFSET: (
        "followers know by the log's terms and indexes what they lack; there is no flush offset to set"
    ),
    Code.UPDATE_CONTROLLER_CONFIG: "the group's settings are part of each node's configuration file",
    Code.CLEAN_BROKER_DATA: "the group's members stand in dLegerPeers of each node's configuration file",
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: NO_COLD_DATA,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: NO_COLD_DATA,
    Code.SET_COMMITLOG_READ_MODE: "the log's files are read by pread, not mapped: there is no mode to set",
    Code.SWITCH_TIMER_ENGINE: (
        "there is one timer engine: timer messages wait in the replicated log (no timer wheel in files, no "
        "RocksDB), so there is none to switch to"
    ),
    Code.AUTH_CREATE_USER: NO_ACL,
    Code.AUTH_UPDATE_USER: NO_ACL,
    Code.AUTH_DELETE_USER: NO_ACL,
    Code.AUTH_GET_USER: NO_ACL,
    Code.AUTH_LIST_USER: NO_ACL,
    Code.AUTH_CREATE_ACL: NO_ACL,
    Code.AUTH_UPDATE_ACL: NO_ACL,
    Code.AUTH_DELETE_ACL: NO_ACL,
    Code.AUTH_GET_ACL: NO_ACL,
    Code.AUTH_LIST_ACL: NO_ACL,
    Code.POP_ROLLBACK: "there is no RocksDB store of POP records that could be moved to files",
}


def _refuse(reason: str, request: RemotingCommand, connection: Connection) -> RemotingCommand:
    raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason)


def unsupported_handlers(served: Container[int]) -> Handlers:
    """`served`: the codes that have a handler."""
    return {code: partial(_refuse, reason) for code, reason in REASONS.items() if code not in served}
