"""`plain_acl.yml`: read at the start and whenever it changes, and changed by mqadmin's commands of RocketMQ
4.9 (50 to 53). Each node has a file of its own, as in RocketMQ 4: mqadmin asks every node.

A file that cannot be used is logged, and what was in force before stays so.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from broker.config import BrokerConfig, ConfigError
from broker.security.plain_acl import KEY_CHARS_MIN, PERMISSIONS, TOO_SHORT, PlainAcl, PlainAclError
from dledger.fs import OsFs, replace_file
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fair_shares import FairShares
from remoting.headers.auth import (
    AccessKeyRequestHeader,
    PlainAccountRequestHeader,
    WhiteAddressesRequestHeader,
)
from remoting.router import Handlers

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
WATCH_INTERVAL_S: Final = 1.0

logger = logging.getLogger(__name__)


class PlainAclFile:
    """The file of this node. Made with what it holds; a service that watches it. Raises ConfigError."""

    def __init__(self, config: BrokerConfig, clock: Callable[[], int], shares: FairShares) -> None:
        self._config = config
        self._shares = shares
        self._clock = clock
        self.path: Path = config.acl_path
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._seen = self._stamp()
        try:
            self.acl = PlainAcl.parse(self._read())
        except (OSError, PlainAclError) as error:
            raise ConfigError(f"aclEnable: {self.path} cannot be used: {error}") from error

    def refusal(self, request: RemotingCommand, connection: Connection) -> RequestError | None:
        """Router's Guard: code 1, as RocketMQ 4 answers what its access control refuses."""
        remark = self.acl.refusal(request, connection.remote_host, self._config.broker_cluster_name)
        if remark is None:
            return None if connection.usage is None else self._over_quota(request, connection)
        code = request.code
        connection.warn_once(f"access {code} {remark[:100]}", f"request code {code} is refused: {remark}")
        return RequestError(ResponseCode.SYSTEM_ERROR, remark)

    def _over_quota(self, request: RemotingCommand, connection: Connection) -> RequestError | None:
        """Of the account that signed the request. Administrators have no quota, nor have other nodes."""
        account = self.acl.signer(request, connection.remote_host)
        inner = self._config.inner_account
        if account is not None and inner is not None and inner[0] == account.access_key:
            self._shares.exempt(connection)
        elif account is not None and not account.is_admin:
            return self._shares.user_refusal(account.access_key, request, connection)
        return None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="plain_acl.yml")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Read the file if it has changed."""
        stamp = await asyncio.to_thread(self._stamp)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self.acl = PlainAcl.parse(await asyncio.to_thread(self._read))
        except (OSError, PlainAclError) as error:
            logger.error("%s is not used, what was read before stays in force: %s", self.path, error)
        else:
            logger.info("%s: %d accounts are in force", self.path, len(self.acl.accounts))

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self.path.stat()
        except OSError:
            return (0, 0, 0)
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Any:
        """Raises OSError, PlainAclError."""
        import yaml

        text = self.path.read_bytes()
        if len(text) > FILE_BYTES_MAX:
            raise PlainAclError(f"it has more than {FILE_BYTES_MAX} bytes")
        try:
            return yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise PlainAclError("it is not YAML") from None  # the error's own words would quote the file

    def _write(self, data: dict[str, Any]) -> None:
        """With the next version. Raises OSError, PlainAclError: the file is as before."""
        import yaml

        version = self.version(data)
        data["dataVersion"] = [{"counter": version["counter"] + 1, "timestamp": self._clock()}]
        acl = PlainAcl.parse(data)
        replace_file(OsFs(), self.path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode())
        self.acl, self._seen = acl, self._stamp()

    @staticmethod
    def version(data: Mapping[str, Any]) -> dict[str, int]:
        """The version of the file's content: how often and when it was changed by requests."""
        rows = data.get("dataVersion")
        row = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
        numbers = {key: row.get(key) for key in ("counter", "timestamp")}
        return {key: number if isinstance(number, int) else 0 for key, number in numbers.items()}

    def handlers(self) -> Handlers:
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.put_account,
            RequestCode.DELETE_ACL_CONFIG: self.delete_account,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.show_version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.put_white_addresses,
        }

    async def put_account(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """50 UPDATE_AND_CREATE_ACL_CONFIG: what the request leaves out stays."""
        header = PlainAccountRequestHeader.parse(request.ext_fields)

        def change(data: dict[str, Any]) -> None:
            rows = data.setdefault("accounts", None) or []
            known = [
                row for row in rows if isinstance(row, dict) and row.get("accessKey") == header.access_key
            ]
            row = known[0] if known else {"accessKey": header.access_key}
            row.update(_account_values(header))
            data["accounts"] = [each for each in rows if each is not row] + [row]

        done = f"account {header.access_key} is stored"
        return await self._change(request, change, ResponseCode.POLLING_FULL, done, connection)

    async def delete_account(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """51 DELETE_ACL_CONFIG"""
        access_key = AccessKeyRequestHeader.parse(request.ext_fields).access_key

        def change(data: dict[str, Any]) -> None:
            rows = data.get("accounts") or []
            left = [row for row in rows if not isinstance(row, dict) or row.get("accessKey") != access_key]
            if len(left) == len(rows):
                remark = f"The accesskey[{access_key}] corresponding to accessConfig has been deleted failed."
                raise PlainAclError(remark)
            data["accounts"] = left

        done = f"account {access_key} is deleted"
        return await self._change(request, change, ResponseCode.POLLING_TIMEOUT, done, connection)

    async def put_white_addresses(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: of the one file that a node has."""
        text = WhiteAddressesRequestHeader.parse(request.ext_fields).global_white_addrs

        def change(data: dict[str, Any]) -> None:
            data["globalWhiteRemoteAddresses"] = [part.strip() for part in text.split(",") if part.strip()]

        done = f"global white addresses are {text}"
        return await self._change(request, change, ResponseCode.BROKER_NOT_EXIST, done, connection)

    async def show_version(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """52 GET_BROKER_CLUSTER_ACL_INFO"""
        try:
            content = await asyncio.to_thread(self._content)
        except (OSError, PlainAclError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        version = orjson.dumps(self.version(content) | {"stateVersion": 0}).decode()
        config = self._config
        fields = {
            "version": version,
            "allAclFileVersion": orjson.dumps({str(self.path): orjson.loads(version)}).decode(),
            "brokerName": config.broker_name,
            "brokerAddr": config.broker_address,
            "clusterName": config.broker_cluster_name,
        }
        return success_response(request, fields)

    def _content(self) -> dict[str, Any]:
        data = self._read()
        return data if isinstance(data, dict) else {}

    async def _change(
        self,
        request: RemotingCommand,
        change: Callable[[dict[str, Any]], None],
        code: ResponseCode,
        done: str,
        connection: Connection,
    ) -> RemotingCommand:
        """Codes are those of RocketMQ 4.9, which 5 uses for others. Raises RequestError."""
        async with self._lock:
            try:
                await asyncio.to_thread(self._rewrite, change)
            except (OSError, PlainAclError) as error:
                raise RequestError(code, str(error)) from error
        logger.info("%s: %s, from %s", self.path, done, connection.remote_host)
        return success_response(request)

    def _rewrite(self, change: Callable[[dict[str, Any]], None]) -> None:
        data = self._content()
        change(data)
        self._write(data)


def _account_values(header: PlainAccountRequestHeader) -> dict[str, Any]:
    """What of an account is in the request. Raises PlainAclError."""
    if header.secret_key is None or min(len(header.access_key), len(header.secret_key)) < KEY_CHARS_MIN:
        raise PlainAclError(TOO_SHORT.format(header.access_key))
    values: dict[str, Any] = {"secretKey": header.secret_key, "admin": header.admin}
    if header.white_remote_address is not None:
        values["whiteRemoteAddress"] = header.white_remote_address
    texts = {"defaultTopicPerm": header.default_topic_perm, "defaultGroupPerm": header.default_group_perm}
    values |= {key: text for key, text in texts.items() if text}
    for key, listed in (("topicPerms", header.topic_perms), ("groupPerms", header.group_perms)):
        if listed is not None:
            values[key] = [_checked(row) for row in listed.split(",")] if listed.strip() else []
    return values


def _checked(row: str) -> str:
    """`NAME=PERMISSION`. Raises PlainAclError."""
    name, _, permission = row.partition("=")
    if not name.strip() or permission.strip() not in PERMISSIONS:
        raise PlainAclError(
            f"Parse resource permission error for {row}. "
            "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
        )
    return row.strip()
