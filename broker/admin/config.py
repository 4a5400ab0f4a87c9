"""The broker's configuration for operators: 25 UPDATE_BROKER_CONFIG and 26 GET_BROKER_CONFIG.

A change is a record of the replicated state (broker/config.py lists the keys that can be changed): it applies
to all nodes of the group, also to those that are down now, and after a restart.
"""

import orjson

from broker.config import RUNTIME_KEYS, BrokerConfig, ConfigError, FixedKeyError, check_settings
from broker.leadership import OnLeader
from broker.registration import LEADER_BROKER_ID
from broker.responses import committed_answer, invalid
from broker.state.changes import PutSettings
from broker.state.state import ReplicatedState
from broker.state.topics import TRACE_TOPIC
from commitlog.log import MessageLog
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.properties_text import PropertiesTextError, format_properties_text, parse_properties_text
from remoting.router import HandlerResult, Handlers


class ConfigAdmin:
    """Shows and changes the configuration."""

    def __init__(
        self, config: BrokerConfig, log: MessageLog, state: ReplicatedState, on_leader: OnLeader
    ) -> None:
        self._on_leader = on_leader
        self._config = config
        self._state = state
        self._log = log

    def handlers(self) -> Handlers:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self._on_leader(self.update),
            RequestCode.GET_BROKER_CONFIG: self.show,
        }

    def show(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """26: every key with its value in force, and beside RocketMQ's answer which keys can change."""
        version = orjson.dumps(self._state.data_version.to_json()).decode()
        body = format_properties_text(self._values())
        ext_fields = {"version": version, "runtimeKeys": ",".join(sorted(RUNTIME_KEYS))}
        return success_response(request, ext_fields, body)

    def update(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """25: all keys or none. What is in force already needs no record, whatever its key."""
        try:
            wanted = parse_properties_text(request.body)
            known = self._values()
            changes = {key: value for key, value in wanted.items() if known.get(key) != value}
            for key in changes.keys() & self._facts():
                raise FixedKeyError(f"{key} says what this node is: it cannot be set")
            check_settings(self._config, changes)
        except (PropertiesTextError, ConfigError) as error:
            raise invalid(str(error)) from error
        except FixedKeyError as error:
            raise RequestError(ResponseCode.NO_PERMISSION, str(error)) from error
        if not changes:
            return success_response(request)
        return committed_answer(request, self._state.propose(PutSettings(changes)))

    def _values(self) -> dict[str, str]:
        return self._config.to_properties() | self._facts()

    def _facts(self) -> dict[str, str]:
        """RocketMQ keys that tools read; here their values follow from other keys or from this node's
        role.
        """
        config, is_leader = self._config, self._log.is_writable()
        master = "SYNC_MASTER" if config.enable_dledger else "ASYNC_MASTER"
        is_synced = config.durability == "persisted" or not config.enable_dledger
        return {
            "brokerId": str(LEADER_BROKER_ID if is_leader else config.follower_broker_id),
            "brokerRole": master if is_leader else "SLAVE",
            "flushDiskType": "SYNC_FLUSH" if is_synced else "ASYNC_FLUSH",
            "useTLS": "false",
            "msgTraceTopicName": TRACE_TOPIC,
        }
