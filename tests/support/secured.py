"""A broker with access control and its admin requests, and clients that sign."""

import base64
from pathlib import Path
from typing import Any

import orjson

from broker.admin.feature import admin_feature
from broker.security.users import security_feature
from remoting.acl import Signer
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.properties_text import format_properties_text
from tests.support.broker_parts import BrokerParts, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog
from tests.support.polling import until

ROOT = Signer("root", "root-secret")
INNER = Signer("node", "node-secret")
KEY = base64.b64encode(bytes(range(32)))


def write_key(folder: Path, key: bytes = KEY) -> Path:
    """A file for `authKeyPath`."""
    path = folder / "auth.key"
    path.write_bytes(key + b"\n")
    path.chmod(0o600)
    return path


def secured_values(folder: Path, **values: Any) -> dict[str, Any]:
    """The keys of a configuration with access control on."""
    account = {"username": ROOT.access_key, "password": ROOT.secret_key}
    inner = {"accessKey": INNER.access_key, "secretKey": INNER.secret_key}
    return {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": orjson.dumps(account).decode(),
        "innerClientAuthenticationCredentials": orjson.dumps(inner).decode(),
        "authKeyPath": str(write_key(folder)),
    } | values


class Secured:
    """Asks as the signer's user; every answer is there within a moment."""

    def __init__(self, folder: Path, log: FakeLog | None = None, **values: Any) -> None:
        self.log = log or FakeLog()
        self.parts: BrokerParts = make_parts(
            folder, self.log, FakeEngine(), **secured_values(folder, **values)
        )
        security, refuses = security_feature(self.parts.core)
        parts = self.parts
        parts.add(security, admin_feature(parts.core, parts.consumers, refuses_settings=refuses))
        self.connection = FakeConnection(host="192.168.0.1")

    def request(
        self, signer: Signer | None, code: RequestCode, body: Any = None, /, **fields: str
    ) -> RemotingCommand:
        """`body` goes as JSON, or as it is if it is bytes."""
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        request = RemotingCommand(code, opaque=5, ext_fields=fields, body=data)
        if signer is not None:
            signer.sign(request)
        return request

    async def ask(
        self, signer: Signer | None, code: RequestCode, body: Any = None, /, **fields: str
    ) -> RemotingCommand:
        """As `request`."""
        return await self.send(self.request(signer, code, body, **fields))

    async def send(self, request: RemotingCommand) -> RemotingCommand:
        """As it is."""
        self.parts.router.dispatch([(self.connection.as_connection, [request], request.code)])
        (answer,) = await self.answers(1)
        return answer

    async def answers(self, count: int) -> list[RemotingCommand]:
        """The next ones."""
        await until(lambda: len(self.connection.answers) >= count)
        return self.connection.take_answers()

    async def settled(self) -> None:
        """All background tasks have ended."""
        await until(lambda: not self.parts.core.tasks._tasks)

    async def create_user(self, name: str, password: str, **more: str) -> RemotingCommand:
        body = {"username": name, "password": password} | more
        return await self.ask(ROOT, RequestCode.AUTH_CREATE_USER, body, username=name)

    async def allow(self, name: str, resource: str, *actions: str, **more: Any) -> RemotingCommand:
        entry = {"resource": resource, "actions": actions, "decision": "Allow"} | more
        body = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
        return await self.ask(ROOT, RequestCode.AUTH_CREATE_ACL, body, subject=f"User:{name}")

    async def set(self, signer: Signer | None, **settings: str) -> RemotingCommand:
        """Changes settings while the broker runs."""
        return await self.ask(signer, RequestCode.UPDATE_BROKER_CONFIG, format_properties_text(settings))
