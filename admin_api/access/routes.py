"""`/api/v1/access`, `/api/v1/users`, `/api/v1/policies`: who may do what on the brokers.

Users and their policies are for those who may operate: a token that only reads figures has no use for them.
"""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import Response

from admin_api.access.changes import NewUser, PolicySpec, UserSpec
from admin_api.access.places import AccessMode
from admin_api.access.service import (
    AccessState,
    AccessView,
    PoliciesView,
    PolicyPage,
    PolicyQuery,
    PolicyRow,
    PolicyView,
    UserPage,
    UserQuery,
    UserRow,
    UserView,
)
from admin_api.access.switching import AccessSwitch
from admin_api.changes import Action
from admin_api.routing import (
    MakeDep,
    PageDep,
    ServicesDep,
    changing,
    costly,
    problems,
    require,
    shown,
    shown_preview,
)
from admin_api.schema import EffectView
from admin_api.security.policy import Role
from broker.state.access import NAME_CHARS_MAX, PolicyType, UserStatus, UserType

_PLACE: Final = "broker-a"
_STATE: Final = shown(
    AccessState(
        places=[
            AccessView(
                place=_PLACE,
                broker_name=_PLACE,
                address="127.0.0.1:10911",
                is_ledgermq=True,
                mode=AccessMode.AUTHORIZATION,
                can_switch=True,
                keeps_users=True,
                remedy=None,
                user_count=12,
                super_user_count=2,
            )
        ],
        is_signing=True,
    )
)
_ROW: Final = UserRow(
    username="alice",
    user_type=UserType.NORMAL,
    user_status=UserStatus.ENABLE,
    places=[_PLACE],
    missing_places=[],
)
_POLICY: Final = PolicyView(
    policy_type="Custom",
    resource="Topic:order*",
    actions=["Pub", "Sub"],
    source_ips=["10.0.0.0/8"],
    decision="Allow",
    places=[_PLACE],
)
_USERS: Final = shown(UserPage(items=[_ROW], page=1, page_size=100, total=1))
_USER: Final = shown(UserView(**_ROW.model_dump(), policies=[_POLICY]))
_POLICIES: Final = shown(
    PolicyPage(items=[PolicyRow(username="alice", **_POLICY.model_dump())], page=1, page_size=100, total=1)
)
_POLICIES_OF: Final = shown(PoliciesView(username="alice", policies=[_POLICY]))
_SWITCHED: Final = shown_preview(
    Action.ACCESS_SWITCH,
    "access control",
    EffectView(subject="broker-a: authenticationEnabled", before="false", after="true"),
    warning="Clients that do not sign as one of the 12 users of broker-a are refused.",
)
_CREATED: Final = shown_preview(
    Action.USER_CREATE,
    "user alice",
    EffectView(subject=_PLACE, before=None, after="Normal, enabled"),
    confirmation=None,
)
_UPDATED: Final = shown_preview(
    Action.USER_UPDATE,
    "user alice",
    EffectView(subject="broker-a: status", before="enable", after="disable"),
)
_DELETED: Final = shown_preview(
    Action.USER_DELETE,
    "user alice",
    EffectView(subject=_PLACE, before="Normal, enabled, 1 policy", after=None),
)
_ENTRY_TEXT: Final = "Allow Pub, Sub from 10.0.0.0/8"
_SUBJECT: Final = "broker-a: Topic:order*"
_PUT: Final = shown_preview(
    Action.POLICY_CREATE,
    "user alice",
    EffectView(subject=_SUBJECT, before=None, after=_ENTRY_TEXT),
    confirmation=None,
)
_REPLACED: Final = shown_preview(
    Action.POLICY_UPDATE,
    "user alice",
    EffectView(subject=_SUBJECT, before="Allow All from anywhere", after=_ENTRY_TEXT),
)
_TAKEN: Final = shown_preview(
    Action.POLICY_DELETE, "user alice", EffectView(subject=_SUBJECT, before=_ENTRY_TEXT, after=None)
)

router = APIRouter(prefix="/api/v1", tags=["access control"])

Username = Annotated[
    str,
    Path(min_length=1, max_length=NAME_CHARS_MAX, description="of a user of the brokers, such as `alice`"),
]
OnBrokers = Annotated[
    list[str] | None, Query(alias="broker", max_length=256, description="only on these brokers; repeatable")
]
_SEE = [Depends(require(Role.READ))]
_READ = [Depends(require(Role.OPERATE)), Depends(costly)]
_NO_USER = problems(e404="No broker has such a user.")


@router.get(
    "/access", summary="Whether access control is on", dependencies=_SEE, responses={**problems(), **_STATE}
)
async def get_access(services: ServicesDep) -> AccessState:
    """`off`; `accounts`: those of RocketMQ 4's plain_acl.yml; `authentication`: users sign their requests;
    `authorization`: and policies must allow them."""
    return await services.access.state()


@router.patch("/access", summary="Switch access control on or off", **changing(Role.ADMIN, _SWITCHED))
async def switch_access(services: ServicesDep, make: MakeDep, switch: AccessSwitch) -> Response:
    """For all nodes of a LedgerMQ group while they run. It is refused while there is no enabled super user,
    or no key for passwords. RocketMQ's own brokers read it from their files when they start."""
    return await make(services.access_switches.switch(switch))


@router.get("/users", summary="Users of the brokers", dependencies=_READ, responses={**problems(), **_USERS})
async def get_users(
    services: ServicesDep,
    page: PageDep,
    name: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="a part of it, in any case")] = "",
    user_type: Annotated[UserType | None, Query(alias="userType", description="only these")] = None,
    user_status: Annotated[UserStatus | None, Query(alias="userStatus", description="only these")] = None,
) -> UserPage:
    """Those of a node's configuration among them. Passwords are in no answer."""
    return await services.access.users(UserQuery(name, user_type, user_status), page)


@router.get("/users/{username:path}", summary="One user", dependencies=_READ, responses={**_NO_USER, **_USER})
async def get_user(services: ServicesDep, username: Username) -> UserView:
    """With its policies."""
    return await services.access.user(username)


@router.post("/users", summary="Create a user", **changing(Role.ADMIN, _CREATED))
async def create_user(services: ServicesDep, make: MakeDep, user: NewUser) -> Response:
    """On every LedgerMQ group, and on every RocketMQ broker, which keep users of their own. Where it is
    already it stays as it is."""
    return await make(services.access_changes.create_user(user))


@router.patch("/users/{username:path}", summary="Change a user", **changing(Role.ADMIN, _UPDATED))
async def update_user(services: ServicesDep, make: MakeDep, username: Username, user: UserSpec) -> Response:
    """Its password, its type, or whether it is enabled."""
    return await make(services.access_changes.update_user(username, user))


@router.delete("/users/{username:path}", summary="Delete a user", **changing(Role.ADMIN, _DELETED))
async def delete_user(
    services: ServicesDep, make: MakeDep, username: Username, brokers: OnBrokers = None
) -> Response:
    """With its policies."""
    return await make(services.access_changes.delete_user(username, brokers))


@router.get(
    "/policies", summary="Policies of all users", dependencies=_READ, responses={**problems(), **_POLICIES}
)
async def get_policies(
    services: ServicesDep,
    page: PageDep,
    username: Annotated[
        str, Query(alias="user", max_length=NAME_CHARS_MAX, description="a part of its name, in any case")
    ] = "",
    resource: Annotated[str, Query(max_length=512, description="a part of it, in any case")] = "",
) -> PolicyPage:
    """One line for each entry: a resource, what may be done with it, from where, and the decision."""
    return await services.access.policies(PolicyQuery(username, resource), page)


@router.get(
    "/policies/{username:path}",
    summary="Policies of a user",
    dependencies=_READ,
    responses={**_NO_USER, **_POLICIES_OF},
)
async def get_policies_of(services: ServicesDep, username: Username) -> PoliciesView:
    """Alike ones of several brokers are one."""
    return await services.access.policies_of(username)


@router.post("/policies/{username:path}", summary="Give a user policies", **changing(Role.ADMIN, _PUT))
async def create_policies(
    services: ServicesDep, make: MakeDep, username: Username, policy: PolicySpec
) -> Response:
    """An entry for each resource. One about a resource that has an entry already is refused."""
    return await make(services.access_changes.put_policies(username, policy, is_new=True))


@router.put(
    "/policies/{username:path}", summary="Change policies of a user", **changing(Role.ADMIN, _REPLACED)
)
async def update_policies(
    services: ServicesDep, make: MakeDep, username: Username, policy: PolicySpec
) -> Response:
    """Each replaces the entry about the same resource, which must be there."""
    return await make(services.access_changes.put_policies(username, policy, is_new=False))


@router.delete(
    "/policies/{username:path}", summary="Delete policies of a user", **changing(Role.ADMIN, _TAKEN)
)
async def delete_policies(
    services: ServicesDep,
    make: MakeDep,
    username: Username,
    resource: Annotated[
        str | None, Query(min_length=1, max_length=512, description="the entry about this one; left out: all")
    ] = None,
    policy_type: Annotated[
        PolicyType, Query(alias="policyType", description="of the entry about `resource`")
    ] = PolicyType.CUSTOM,
    brokers: OnBrokers = None,
) -> Response:
    """Without a policy that allows it, a user who is no super user may do nothing."""
    return await make(services.access_changes.delete_policies(username, resource, policy_type, brokers))
