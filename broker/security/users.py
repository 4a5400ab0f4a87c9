"""Users and their rights for operators, as RocketMQ 5.3's broker answers 3001 to 3010, but for passwords:
no answer has one.

Every change is a record of the replicated state, and a line in the log with the user who made it.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from broker.config import BrokerConfig, ConfigError
from broker.feature import Core, Feature
from broker.leadership import OnLeader
from broker.responses import committed_answer, invalid, json_answer
from broker.security.access_control import AccessControl, Accounts, check_switch_on
from broker.security.passwords import PasswordCipher, open_cipher
from broker.security.plain_acl import PlainAclError, checked_rights
from broker.security.plain_acl_file import PlainAclFile
from broker.state.access import (
    PASSWORD_CHARS_MAX,
    AccessError,
    AccessList,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
    by_name,
    checked_name,
    user_of,
)
from broker.state.changes import Change, DeleteAccessList, DeleteUser, PutAccessList, PutUser
from broker.state.state import ReplicatedState
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fastjson import FastjsonError, loads_request
from remoting.headers.auth import (
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    SubjectRequestHeader,
    UserRequestHeader,
)
from remoting.router import Handler, HandlerResult, Handlers
from remoting.slices import Steps

ADDRESSES_MAX: Final = 1_000
"""In the rights that one request gives."""
logger = logging.getLogger(__name__)


class UserAdmin:
    """Shows and changes users and rights."""

    def __init__(
        self,
        state: ReplicatedState,
        accounts: Accounts,
        control: AccessControl,
        cipher: PasswordCipher | None,
        on_leader: OnLeader,
    ) -> None:
        self._state = state
        self._accounts = accounts
        self._control = control
        self._cipher = cipher
        self._on_leader = on_leader
        self._lock = asyncio.Lock()

    def handlers(self) -> Handlers:
        change = self._change
        return {
            RequestCode.AUTH_CREATE_USER: change(self.create_user),
            RequestCode.AUTH_UPDATE_USER: change(self.update_user),
            RequestCode.AUTH_DELETE_USER: change(self.delete_user),
            RequestCode.AUTH_GET_USER: _refused_by_remark(self.show_user),
            RequestCode.AUTH_LIST_USER: _refused_by_remark(self.list_users),
            RequestCode.AUTH_CREATE_ACL: change(self.put_rights),
            RequestCode.AUTH_UPDATE_ACL: change(self.put_rights),
            RequestCode.AUTH_DELETE_ACL: change(self.delete_rights),
            RequestCode.AUTH_GET_ACL: _refused_by_remark(self.show_rights),
            RequestCode.AUTH_LIST_ACL: _refused_by_remark(self.list_rights),
        }

    def _change(self, make_change: Callable[[RemotingCommand], Change | None]) -> Handler:
        """A handler, on the leader, that has a change committed; no change is a success too."""

        async def handle(request: RemotingCommand, connection: Connection) -> RemotingCommand:
            # A change is made of what is there: two at once would be made of the same, and one be lost.
            async with self._lock:
                try:
                    change = make_change(request)
                except AccessError as error:
                    raise _refused(error) from error
                if change is None:
                    return success_response(request)
                account = self._control.acting_user(request)
                who = "an unsigned request" if account is None else account.name
                logger.info("%s, by %s from %s", _text_of(change), who, connection.remote_host)
                return await committed_answer(request, self._state.propose(change))

        return self._on_leader(handle)

    def create_user(self, request: RemotingCommand) -> Change | None:
        """3001 AUTH_CREATE_USER. mqadmin sends it to every node of the group: the first one creates the user,
        and for the others it is there just so.
        """
        name, body = self._named(request)
        kind, status = by_name(UserType, body.get("userType")), by_name(UserStatus, body.get("userStatus"))
        if kind is UserType.SUPER and self._is_no_super_user(request):
            remark = "The super user can only be create by super user"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        password = self._password(name, body)
        if password is None:
            raise AccessError("password can not be blank")
        user = User(name, password, kind or UserType.NORMAL, status or UserStatus.ENABLE)
        if self._accounts.get(name) is None:
            return PutUser(user)
        if self._is_same(self._state.access.users.get(name), user):
            return None
        raise AccessError("The user is existed")

    def _is_same(self, known: User | None, user: User) -> bool:
        if known is None or self._cipher is None or known.shown() != user.shown():
            return False
        passwords = [self._cipher.decrypt(each.name, each.password) or b"" for each in (known, user)]
        return hmac.compare_digest(*passwords)

    def update_user(self, request: RemotingCommand) -> Change:
        """3002 AUTH_UPDATE_USER: what the body leaves out stays."""
        name, body = self._named(request)
        kind, status = by_name(UserType, body.get("userType")), by_name(UserStatus, body.get("userStatus"))
        if kind is UserType.SUPER and self._is_no_super_user(request):
            remark = "The super user can only be update by super user"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        old = self._state.access.users.get(name) or self._configured(name)
        if old is None:
            raise AccessError("The user is not exist")
        self._check_super(request, old.type)
        password = self._password(name, body) or old.password
        if not password:
            raise AccessError("the user stands in the nodes' configuration: give its password too")
        return PutUser(User(name, password, kind or old.type, status or old.status))

    def _configured(self, name: str) -> User | None:
        """A user of the configuration that the log does not have."""
        return User(name, "", UserType.SUPER) if name in self._accounts.configured else None

    def delete_user(self, request: RemotingCommand) -> Change | None:
        """3003 AUTH_DELETE_USER, with its rights. A user of the configuration is as it says again."""
        name = UserRequestHeader.parse(request.ext_fields).username
        user = self._state.access.users.get(name)
        if user is not None:
            self._check_super(request, user.type)
            return DeleteUser(checked_name(name))
        if name in self._accounts.configured:
            raise AccessError("the user stands in the nodes' configuration: remove it there")
        return None

    def show_user(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """3004 AUTH_GET_USER: no body where there is no such user."""
        name = UserRequestHeader.parse(request.ext_fields).username
        if not name.strip():
            raise invalid("The username is blank")
        user = self._state.access.users.get(name) or self._configured(name)
        return success_response(request) if user is None else json_answer(request, user.shown())

    def list_users(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """3005 AUTH_LIST_USER: those whose name contains the filter."""
        wanted = ListUsersRequestHeader.parse(request.ext_fields).filter.strip()
        users = {name: User(name, "", UserType.SUPER) for name in self._accounts.configured}
        users |= self._state.access.users
        rows = [users[name].shown() for name in sorted(users) if wanted in name]
        return json_answer(request, rows) if rows else success_response(request)

    def put_rights(self, request: RemotingCommand) -> Change:
        """3006 AUTH_CREATE_ACL and 3007 AUTH_UPDATE_ACL: entries about the same resource are replaced."""
        subject = SubjectRequestHeader.parse(request.ext_fields).subject
        body = _body(request)
        if not body.get("policies"):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The body of acl is null")
        _check_addresses(body)
        rights = AccessList.from_json(body, subject)
        if self._accounts.get(rights.username) is None:
            raise AccessError(f"The subject of {rights.subject} is not exist.")
        old = self._state.access.rights.get(rights.username)
        return PutAccessList(rights if old is None else old.updated(rights))

    def delete_rights(self, request: RemotingCommand) -> Change | None:
        """3008 AUTH_DELETE_ACL: the entry about one resource, or all. What is not there is deleted: mqadmin
        asks every node of the group.
        """
        header = DeleteAclRequestHeader.parse(request.ext_fields)
        rights = self._rights_of(header.subject)
        if rights is None:
            return None
        if not header.resource.strip():
            return DeleteAccessList(rights.username)
        kind = by_name(PolicyType, header.policy_type) or PolicyType.CUSTOM
        left = rights.without(kind, Resource.parse(header.resource))
        return PutAccessList(left) if left.policies else DeleteAccessList(rights.username)

    def show_rights(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """3009 AUTH_GET_ACL"""
        rights = self._rights_of(SubjectRequestHeader.parse(request.ext_fields).subject)
        return success_response(request) if rights is None else json_answer(request, rights.to_json())

    def _rights_of(self, subject: str) -> AccessList | None:
        name = user_of(subject)
        if self._accounts.get(name) is None:
            raise AccessError("The subject is not exist.")
        return self._state.access.rights.get(name)

    def list_rights(self, request: RemotingCommand, connection: Connection) -> HandlerResult:
        """3010 AUTH_LIST_ACL: the subjects that contain a filter, with the resources that contain another."""
        header = ListAclsRequestHeader.parse(request.ext_fields)
        subject, resource = header.subject_filter.strip(), header.resource_filter.strip()
        found = [
            shown
            for _, rights in sorted(self._state.access.rights.items())
            if subject in rights.subject and (shown := _with_resources(rights, resource))["policies"]
        ]
        return json_answer(request, found) if found else success_response(request)

    def _named(self, request: RemotingCommand) -> tuple[str, dict[str, Any]]:
        name = UserRequestHeader.parse(request.ext_fields).username
        if not name:
            raise invalid("The username is blank")
        return checked_name(name), _body(request)

    def _password(self, name: str, body: dict[str, Any]) -> str | None:
        """The encrypted form; None when the body has none."""
        password = body.get("password")
        if not isinstance(password, str) or not password.strip():
            return None
        if len(password) > PASSWORD_CHARS_MAX:
            raise AccessError(f"a password has at most {PASSWORD_CHARS_MAX} characters")
        if self._cipher is None:
            raise AccessError("this node has no key to encrypt passwords with: set authKeyPath on each node")
        return self._cipher.encrypt(name, password)

    def _check_super(self, request: RemotingCommand, kind: UserType) -> None:
        if kind is UserType.SUPER and self._is_no_super_user(request):
            raise AccessError("The super user can only be update by super user")

    def _is_no_super_user(self, request: RemotingCommand) -> bool:
        account = self._control.acting_user(request)
        return account is not None and not account.is_super


def _check_addresses(body: dict[str, Any]) -> None:
    """Each costs the time of several entries. Raises AccessError."""
    policies = body["policies"] if isinstance(body["policies"], list) else []
    entries = [entry for each in policies if isinstance(each, dict) for entry in _list(each, "entries")]
    if sum(len(_list(entry, "sourceIps")) for entry in entries) > ADDRESSES_MAX:
        raise AccessError(f"At most {ADDRESSES_MAX} source ips are possible at once.")


def _list(data: object, name: str) -> list[Any]:
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


def _refused_by_remark(handler: Handler) -> Handler:
    """AccessError becomes 16 NO_PERMISSION, as in RocketMQ."""

    def handle(
        request: RemotingCommand, connection: Connection
    ) -> HandlerResult | Steps[RemotingCommand | None]:
        try:
            return handler(request, connection)
        except AccessError as error:
            raise _refused(error) from error

    return handle


def _refused(error: AccessError) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, str(error))


def _body(request: RemotingCommand) -> dict[str, Any]:
    try:
        body = loads_request(request.body) if request.body else {}
    except FastjsonError:
        body = None  # its words may quote a password
    if not isinstance(body, dict):
        raise invalid("the body is not a JSON object")
    return body


def _with_resources(rights: AccessList, wanted: str) -> dict[str, Any]:
    shown = rights.to_json()
    for policy in shown["policies"]:
        policy["entries"] = [entry for entry in policy["entries"] if wanted in entry["resource"]]
    shown["policies"] = [policy for policy in shown["policies"] if policy["entries"]]
    return shown


def _text_of(change: Change) -> str:
    match change:
        case PutUser(user):
            return f"user {user.name} is stored ({user.type.value}, {user.status.value})"
        case DeleteUser(name):
            return f"user {name} is deleted"
        case PutAccessList(rights):
            return f"rights of user {rights.username} are stored: {rights.to_json()['policies']}"
        case DeleteAccessList(username):
            return f"rights of user {username} are deleted"
    raise AssertionError(f"{change} is no change of users")


class Migration:
    """Makes users and policies of a file's accounts, on each node that becomes the writable leader."""

    def __init__(self, core: Core, accounts: Accounts, cipher: PasswordCipher, file: PlainAclFile) -> None:
        self._state, self._accounts, self._cipher, self._file = core.state, accounts, cipher, file
        self._spawn = core.tasks.spawn
        core.log.on_writable_change(self._on_writable_change)

    def _on_writable_change(self, is_writable: bool) -> None:
        if is_writable:
            self._spawn(self.run())

    async def run(self) -> None:
        """What is a user already stays as it is."""
        for account in self._file.acl.accounts.values():
            name = account.access_key
            if self._accounts.get(name) is not None:
                continue
            kind = UserType.SUPER if account.is_admin else UserType.NORMAL
            changes: list[Change] = [
                PutUser(User(name, self._cipher.encrypt(name, account.secret_key), kind))
            ]
            try:
                rights = checked_rights(account)
            except PlainAclError as error:
                logger.error("account %s is not migrated: %s", name, error)
                continue
            changes += [] if rights is None else [PutAccessList(rights)]
            status = await self._state.propose(*changes)
            logger.info("account %s of %s is migrated: %s", name, self._file.path, status.name)


def security_feature(core: Core) -> tuple[Feature, Callable[[BrokerConfig], str | None]]:
    """Access control and its requests; and why access control cannot go on with a configuration. Raises
    ConfigError.
    """
    config = core.config
    cipher = open_cipher(config)
    accounts = Accounts(config, core.state, cipher)
    file = PlainAclFile(config, core.clock, core.shares) if config.acl_enable or config.migrate_auth else None
    otherwise = file.refusal if file is not None and config.acl_enable else None
    control = AccessControl(config, core.state, accounts, core.router, core.log, core.shares, otherwise)
    if file is not None and config.migrate_auth:
        if cipher is None:
            raise ConfigError("migrateAuthFromV1Enabled needs authKeyPath")
        Migration(core, accounts, cipher, file)
    users = UserAdmin(core.state, accounts, control, cipher, core.on_leader)
    handlers = {**users.handlers(), **({} if file is None else file.handlers())}
    feature = Feature(
        handlers=handlers,
        services=() if file is None else (file,),
        runtime_figures=(lambda: {"quotaRefused": core.shares.recently_refused()},),
    )
    return feature, partial(check_switch_on, config, accounts, core.members)
