"""Brokers with users: a real LedgerMQ broker's access control without a network, and RocketMQ brokers, each
of which keeps users of its own and answers with passwords.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from remoting.acl import Signer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.support.secured import ROOT, Secured
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers

N0 = "127.0.0.1:10911"
MASTER, SLAVE = "127.0.0.1:20911", "127.0.0.1:20921"
V4_9_7, V5_4_0 = 407, 493
OFF = {"authenticationEnabled": False, "authorizationEnabled": False}
STORED = {"authenticationMetadataProvider": "Local", "authenticationEnabled": "true"}
_USERS = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)
_CONFIG = (RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG)


class GuardedBrokers(FakeBrokers):
    """`broker-a` is a LedgerMQ group; `signer` is this service's account."""

    def __init__(self, folder: Path, **values: Any) -> None:
        super().__init__(FakeBroker("broker-a", N0))
        self.signer: Signer | None = ROOT
        self.secured = Secured(folder, **values)

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        is_refused = (address, RequestCode(command.code)) in self.refusing
        if address == N0 and command.code in (*_USERS, *_CONFIG) and not is_refused:
            command.opaque = 5
            if self.signer is not None:
                self.signer.sign(command)
            return await self.secured.send(command)
        return await super().invoke(address, command, timeout_s)


class StockBroker(FakeBroker):
    """One of RocketMQ, with its own users."""

    def __init__(self, address: str, broker_id: int = 0, version: int = V5_4_0, **settings: str) -> None:
        super().__init__("broker-s", address, broker_id, is_stock=True)
        self.version = version
        """An answer's, as RocketMQ's MQVersion."""
        self.settings = {"brokerName": "broker-s", **settings}
        self.users: dict[str, dict[str, str]] = {}
        self.acls: dict[str, list[dict[str, Any]]] = {}

    def answer(self, command: RemotingCommand) -> RemotingCommand:
        if self.version < V5_4_0:
            code, remark = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type not supported"
        elif "authenticationMetadataProvider" not in self.settings:
            code, remark = ResponseCode.SYSTEM_ERROR, "An system error occurred, please try again later."
        else:
            return RemotingCommand(code=0, body=self._body(command))
        return RemotingCommand(code=code, remark=remark)

    def _body(self, command: RemotingCommand) -> bytes:
        ext, given = command.ext_fields, orjson.loads(command.body or b"null")
        name = ext.get("username") or ext.get("subject", "").removeprefix("User:")
        match command.code:
            case RequestCode.AUTH_CREATE_USER:
                self.users[name] = {"userType": "Normal", "userStatus": "enable", **given}
            case RequestCode.AUTH_UPDATE_USER:
                self.users[name] |= given
            case RequestCode.AUTH_DELETE_USER:
                del self.users[name]
                self.acls.pop(name, None)
            case RequestCode.AUTH_CREATE_ACL | RequestCode.AUTH_UPDATE_ACL:
                self.acls[name] = [*self.acls.get(name, []), *given["policies"]]
            case RequestCode.AUTH_GET_USER:
                return orjson.dumps(self.users[name]) if name in self.users else b""
            case RequestCode.AUTH_LIST_USER:
                return orjson.dumps(list(self.users.values()))
            case RequestCode.AUTH_GET_ACL:
                return orjson.dumps(self._acl(name)) if name in self.acls else b""
            case RequestCode.AUTH_LIST_ACL:
                return orjson.dumps([self._acl(each) for each in self.acls])
        return b""

    def _acl(self, name: str) -> dict[str, Any]:
        return {"subject": f"User:{name}", "policies": self.acls[name]}


class StockBrokers(FakeBrokers):
    """Of one name, a master and its slave."""

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        broker = self.brokers.get(address)
        is_answering = address != NAMESRV and address not in self.dead
        if is_answering and isinstance(broker, StockBroker):
            if command.code in _USERS:
                self.asked[address, RequestCode(command.code)] += 1
                answer = broker.answer(command)
            else:
                answer = await super().invoke(address, command, timeout_s)
            answer.version = broker.version
            return answer
        return await super().invoke(address, command, timeout_s)


def stock_pair(
    settings: Mapping[str, str], version: int = V5_4_0
) -> tuple[StockBrokers, StockBroker, StockBroker]:
    master = StockBroker(MASTER, 0, version, **settings)
    slave = StockBroker(SLAVE, 1, version, **settings)
    return StockBrokers(master, slave), master, slave
