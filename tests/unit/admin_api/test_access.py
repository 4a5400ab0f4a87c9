"""Users, policies and the switch of access control over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient

from admin_api.access.switching import AccessSwitch
from admin_api.app import create_app
from admin_api.audit.log import AuditLog
from admin_api.security.policy import policy_for
from admin_api.services import Services
from admin_api.settings import Settings
from broker.state.access import ENTRIES_MAX
from remoting.acl import Signer
from remoting.codes import RequestCode as Code
from tests.support.secured import ROOT
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBrokers
from tests.unit.admin_api.fake_users import (
    MASTER,
    N0,
    OFF,
    SLAVE,
    STORED,
    V4_9_7,
    V5_4_0,
    GuardedBrokers,
    stock_pair,
)
from tests.unit.admin_api.serving import answered, asking, asking_app
from tests.unit.admin_api.test_guard import ADMIN, OPERATE, READ, TOKENS, bearer

SECRET = "tea-and-Biscuits"
ALICE = {"username": "alice", "password": SECRET}
ORDERS = {"resources": ["Topic:orders"], "actions": ["Pub", "Sub"], "sourceIps": ["10.0.0.0/8"]}
NOT_CONFIGURED = {"initAuthenticationUser": "", "innerClientAuthenticationCredentials": ""}
ORDERS_TEXT = "Allow Pub, Sub from 10.0.0.0/8"


async def made(client: AsyncClient, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    """Made, and confirmed where that is needed; a refusal of the preview is the answer."""
    sign = "&" if "?" in path else "?"
    answer = await client.request(method, f"{path}{sign}dryRun=false", json=body)
    if answer.status_code == 428:
        headers = {"Confirmation": answer.json()["result"]["confirmation"]}
        answer = await client.request(method, f"{path}{sign}dryRun=false", json=body, headers=headers)
    return answered(answer, status)


@asynccontextmanager
async def guarded(folder: Path, *users: str, **values: Any) -> AsyncIterator[AsyncClient]:
    """A LedgerMQ group with these users."""
    async with asking(GuardedBrokers(folder, **values)) as client:
        for name in users:
            await made(client, "POST", "/users", {"username": name, "password": f"{name}-secret"})
        yield client


async def test_a_user_lives_and_its_password_is_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    brokers, log = GuardedBrokers(tmp_path), AuditLog(tmp_path / "audit.jsonl")
    settings = Settings(NAMESRV, brokers_cache_ms=0)
    said = []
    async with asking_app(create_app(settings, brokers, audit_log=log)) as client:
        said.append(await made(client, "POST", "/users", ALICE))
        assert said[0]["effects"] == [{"subject": "broker-a", "before": None, "after": "Normal, enabled"}]
        assert (await brokers.secured.ask(Signer("alice", SECRET), Code.GET_BROKER_CONFIG)).code == 16
        bodies = ({"userType": "Super"}, {"password": f"{SECRET}-2"}, {"userStatus": "disable"})
        said += [await made(client, "PATCH", "/users/alice", body) for body in bodies]
        assert [effect["subject"] for each in said for effect in each["effects"]] == [
            "broker-a",
            "broker-a: type",
            "broker-a: password",
            "broker-a: status",
        ]
        said.append(answered(await client.get("/users", params={"name": "LIC"})))
        assert said[-1]["items"] == [
            {
                "username": "alice",
                "userType": "Super",
                "userStatus": "disable",
                "places": ["broker-a"],
                "missingPlaces": [],
            }
        ]
        await made(client, "PATCH", "/users/alice", {"userStatus": "enable"})
        alice = Signer("alice", f"{SECRET}-2")
        assert (await brokers.secured.ask(alice, Code.GET_BROKER_CONFIG)).code == 0
        said.append(await made(client, "DELETE", "/users/alice"))
        assert said[-1]["effects"][0]["before"] == "Super, enabled, no policies"
        answered(await client.get("/users/alice"), 404)
        said.append(answered(await client.get("/audit")))
    log.close()
    actions = [entry["action"] for entry in said[-1]["items"] if entry["outcome"] == "applied"]
    assert actions == ["user.delete", *["user.update"] * 4, "user.create"]
    assert SECRET not in f"{said}{caplog.text}{(tmp_path / 'audit.jsonl').read_text()}"
    assert all(SECRET not in str(command.ext_fields) for _, command in brokers.commands)


async def test_those_of_the_configuration_are_listed(tmp_path: Path) -> None:
    async with guarded(tmp_path, "alice", "bob") as client:
        page = answered(await client.get("/users", params={"pageSize": 2, "page": 2}))
        supers = answered(await client.get("/users", params={"userType": "Super"}))
    assert ([row["username"] for row in page["items"]], page["total"]) == (["node", "root"], 4)
    assert [row["username"] for row in supers["items"]] == ["node", "root"]


async def test_a_user_that_is_there_is_not_created_again(tmp_path: Path) -> None:
    async with guarded(tmp_path, "alice") as client:
        problem = await made(client, "POST", "/users", ALICE, 409)
    assert problem["detail"] == "The user alice exists already, on broker-a; change it."


async def test_without_a_key_no_password_is_kept(tmp_path: Path) -> None:
    async with guarded(tmp_path, authKeyPath="", **OFF) as client:
        (place,) = answered(await client.get("/access"))["places"]
        created = await made(client, "POST", "/users", ALICE, 409)
        switched = await made(client, "PATCH", "/access", {"authenticationEnabled": True}, 409)
    assert (place["mode"], place["canSwitch"], place["keepsUsers"]) == ("off", False, False)
    assert "set authKeyPath in the configuration file of each node" in place["remedy"]
    assert created["detail"] == f"broker-a can keep no passwords. {place['remedy']}"
    assert switched["detail"] == f"broker-a cannot check users. {place['remedy']}"


BAD_USERS: list[tuple[Any, int, str]] = [
    ({"username": "alice"}, 422, "password is missing"),
    ({"username": "alice", "password": " \t"}, 422, "password does not fit: it is blank, or"),
    (
        {"username": "alice", "password": SECRET * 100},
        422,
        "it is blank, or has more than 1024 characters",
    ),
    ({"username": "a" * 256, "password": SECRET}, 422, "username may have 255 characters at most"),
    ({"username": " ", "password": SECRET}, 400, "printable characters"),
    ({"username": "a\u202eb", "password": SECRET}, 400, "printable characters"),
    ({**ALICE, "userType": "root"}, 422, "userType must be 'Super' or 'Normal'"),
    ({**ALICE, "brokers": ["nobody"]}, 404, "A broker nobody that accepts writes does not exist."),
]


async def test_bad_users_are_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as client:
        for body, status, said in BAD_USERS:
            answer = await client.post("/users", json=body)
            assert said in answered(answer, status)["detail"]
            assert SECRET not in answer.text
        assert answered(await client.get("/users", params={"name": "a"}))["total"] == 0


BAD_POLICIES: list[tuple[Any, int, str]] = [
    ({"resources": ["orders"]}, 400, "'orders' is no resource"),
    ({"resources": ["Topic:"]}, 400, "'Topic:' is no resource"),
    ({"resources": ["Topic:a*b"]}, 400, "'Topic:a*b' is no resource"),
    ({"resources": ["Queue:a"]}, 400, "'Queue:a' is no resource"),
    ({"resources": []}, 422, "resources must not be empty"),
    ({"resources": ["*"] * 101}, 422, "resources may have 100 entries at most"),
    ({"actions": []}, 422, "actions must not be empty"),
    ({"actions": ["Any"]}, 422, "actions.0 must be 'All', 'Pub'"),
    ({"sourceIps": ["10.0.0.300"]}, 400, "'10.0.0.300' is no address and no network"),
    ({"decision": "Perhaps"}, 422, "decision must be 'Allow' or 'Deny'"),
]


async def test_bad_policies_are_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path, "alice") as client:
        for change, status, said in BAD_POLICIES:
            answer = await client.post("/policies/alice", json={**ORDERS, **change})
            assert said in answered(answer, status)["detail"]
        assert answered(await client.get("/policies"))["total"] == 0


async def test_policies_are_given_changed_and_taken(tmp_path: Path) -> None:
    async with guarded(tmp_path, "alice", "bob") as client:
        wanted = {**ORDERS, "resources": ["topic:orders", "Group:billing"]}
        given = await made(client, "POST", "/policies/alice", wanted)
        assert given["effects"] == [
            {"subject": f"broker-a: {resource}", "before": None, "after": ORDERS_TEXT}
            for resource in ("Topic:orders", "Group:billing")
        ]
        again = await made(client, "POST", "/policies/alice", wanted)
        assert (again["effects"], again["warnings"]) == ([], ["Nothing would change."])
        denied = {**ORDERS, "decision": "Deny", "sourceIps": []}
        assert (
            "has a policy about Topic:orders already"
            in (await made(client, "POST", "/policies/alice", denied, 409))["detail"]
        )
        preview = answered(await client.put("/policies/alice", json=denied))
        assert (preview["isDryRun"], preview["effects"]) == (
            True,
            [
                {
                    "subject": "broker-a: Topic:orders",
                    "before": ORDERS_TEXT,
                    "after": "Deny Pub, Sub from anywhere",
                }
            ],
        )
        await made(client, "PUT", "/policies/alice", denied)
        other = {**ORDERS, "policyType": "Default"}
        assert (
            "A policy of alice about Topic:orders does not exist."
            in (await made(client, "PUT", "/policies/alice", other, 404))["detail"]
        )
        await made(client, "POST", "/policies/bob", other)
        page = answered(await client.get("/policies", params={"resource": "ORDERS"}))
        assert [(row["username"], row["policyType"], row["decision"]) for row in page["items"]] == [
            ("alice", "Custom", "Deny"),
            ("bob", "Default", "Allow"),
        ]
        await made(client, "DELETE", "/policies/alice?resource=Topic:orders")
        (left,) = answered(await client.get("/policies/alice"))["policies"]
        assert (left["resource"], left["sourceIps"], left["places"]) == (
            "Group:billing",
            ["10.0.0.0/8"],
            ["broker-a"],
        )
        assert answered(await client.get("/users/alice"))["policies"] == [left]
        await made(client, "DELETE", "/policies/alice")
        answered(await client.delete("/policies/alice"), 404)
        deleted = await made(client, "DELETE", "/users/bob")
    assert deleted["effects"][0]["before"] == "Normal, enabled, 1 policy"


async def test_more_policies_than_a_user_may_have_are_refused(tmp_path: Path) -> None:
    brokers = GuardedBrokers(tmp_path)
    await brokers.secured.create_user("alice", SECRET)
    entries = [
        {"resource": f"Topic:t{number}", "actions": ["Pub"], "decision": "Allow"}
        for number in range(ENTRIES_MAX)
    ]
    body = {"policies": [{"policyType": "Custom", "entries": entries}]}
    assert (await brokers.secured.ask(ROOT, Code.AUTH_CREATE_ACL, body, subject="User:alice")).code == 0
    async with asking(brokers) as client:
        problem = await made(client, "POST", "/policies/alice", ORDERS, 409)
    assert problem["detail"] == "broker-a: a user has at most 1000 policy entries."


OF_NOBODY: list[tuple[str, str, Any]] = [
    ("GET", "/users/nobody", None),
    ("GET", "/policies/nobody", None),
    ("PATCH", "/users/nobody", {"userStatus": "disable"}),
    ("DELETE", "/users/nobody", None),
    ("POST", "/policies/nobody", ORDERS),
    ("PUT", "/policies/nobody", ORDERS),
    ("DELETE", "/policies/nobody?resource=*", None),
]


async def test_a_user_that_is_not_there(tmp_path: Path) -> None:
    async with guarded(tmp_path) as client:
        for method, path, body in OF_NOBODY:
            problem = answered(await client.request(method, path, json=body), 404)
            assert problem["detail"] == "The user nobody does not exist."


async def test_a_name_with_any_characters_has_an_address(tmp_path: Path) -> None:
    async with guarded(tmp_path, "a/b c%") as client:
        await made(client, "POST", "/policies/a%2Fb%20c%25", ORDERS)
        user = answered(await client.get("/users/a%2Fb%20c%25"))
    assert (user["username"], user["policies"][0]["resource"]) == ("a/b c%", "Topic:orders")


async def test_what_only_a_super_user_may_the_broker_refuses(tmp_path: Path) -> None:
    brokers = GuardedBrokers(tmp_path)
    assert (await brokers.secured.create_user("helper", SECRET)).code == 0
    assert (await brokers.secured.allow("helper", "*", "All")).code == 0
    brokers.signer = Signer("helper", SECRET)
    async with asking(brokers) as client:
        problem = await made(client, "POST", "/users", {**ALICE, "userType": "Super"}, 409)
        await made(client, "POST", "/users", ALICE)
        removed = await made(client, "DELETE", "/users/root", None, 409)
    assert "The super user can only be create by super user" in problem["detail"]
    assert "stands in the nodes' configuration" in removed["detail"]


async def test_a_confirmation_is_for_one_password(tmp_path: Path) -> None:
    async with guarded(tmp_path, "alice") as client:
        preview = answered(await client.patch("/users/alice", json={"password": SECRET}))
        assert "broker-a refuses clients that still sign with the old password." in preview["warnings"]
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        answered(await client.patch("/users/alice", json={"password": "another"}, params=query), 409)
        answered(await client.patch("/users/alice", json={"password": SECRET}, params=query))


async def test_the_last_super_user_is_named(tmp_path: Path) -> None:
    async with guarded(tmp_path, **NOT_CONFIGURED, **OFF) as client:
        await made(client, "POST", "/users", {**ALICE, "userType": "Super"})
        preview = answered(await client.delete("/users/alice"))
        await made(client, "PATCH", "/access", {"authenticationEnabled": True})
    assert preview["warnings"] == [
        "alice is the only enabled super user of broker-a: access control cannot be on without."
    ]


async def test_access_control_is_switched_on_and_off(tmp_path: Path) -> None:
    brokers = GuardedBrokers(tmp_path, **OFF)
    async with asking(brokers) as client:
        both = {"authenticationEnabled": True, "authorizationEnabled": True}
        preview = answered(await client.patch("/access", json=both))
        assert preview["effects"] == [
            {"subject": f"broker-a: {key}", "before": "false", "after": "true"} for key in both
        ]
        assert preview["warnings"][:3] == [
            "This holds for every node of broker-a, also after a restart.",
            "Clients that do not sign as one of the 2 users of broker-a are refused.",
            "Users may then do only what their policies allow, but for the 2 super users.",
        ]
        assert "Requests from here are not signed" in preview["warnings"][3]
        assert brokers.secured.parts.core.router.guard is None
        await made(client, "PATCH", "/access", both)
        (place,) = answered(await client.get("/access"))["places"]
        assert (place["mode"], place["userCount"], place["superUserCount"]) == ("authorization", 2, 2)
        assert (await brokers.secured.ask(None, Code.GET_BROKER_CONFIG)).code == 16
        again = await made(client, "PATCH", "/access", both)
        assert (again["effects"], again["warnings"]) == ([], ["Nothing would change."])
        weaker = answered(await client.patch("/access", json={"authorizationEnabled": False}))
        assert "Every user may then do everything: policies are no longer asked." in weaker["warnings"]
        off = await made(client, "PATCH", "/access", dict.fromkeys(both, False))
        assert "Every client that reaches broker-a may then do everything." in off["warnings"]
        assert answered(await client.get("/access"))["places"][0]["mode"] == "off"
        entry = answered(await client.get("/audit"))["items"][0]
    assert (await brokers.secured.ask(None, Code.GET_BROKER_CONFIG)).code == 0
    assert (entry["action"], entry["target"], entry["outcome"]) == (
        "access.switch",
        "access control",
        "applied",
    )


async def test_it_is_not_switched_on_without_a_super_user(tmp_path: Path) -> None:
    brokers = GuardedBrokers(tmp_path, **OFF, **NOT_CONFIGURED)
    async with asking(brokers) as client:
        problem = await made(client, "PATCH", "/access", {"authorizationEnabled": True}, 409)
        answer = await brokers.secured.set(None, authenticationEnabled="true")
    assert problem["detail"] == f"broker-a: {answer.remark}."


async def test_what_the_broker_refuses_then_is_its_sentence(tmp_path: Path) -> None:
    brokers = GuardedBrokers(tmp_path, **OFF)
    brokers.refusing[N0, Code.UPDATE_BROKER_CONFIG] = (29, "there is no enabled super user")
    async with asking(brokers) as client:
        problem = await made(client, "PATCH", "/access", {"authenticationEnabled": True}, 409)
    assert "there is no enabled super user" in problem["detail"]


@pytest.mark.parametrize(
    ("account", "said"),
    [
        ("root", []),
        ("stranger", ["signed as stranger, no user of broker-a: it will refuse them."]),
        ("alice", ["signed as alice, no enabled super user of broker-a"]),
    ],
)
async def test_whether_this_service_is_refused_then(tmp_path: Path, account: str, said: list[str]) -> None:
    brokers = GuardedBrokers(tmp_path, **OFF)
    await brokers.secured.create_user("alice", SECRET)
    services = Services(brokers, Settings(NAMESRV), account)
    preview = await services.access_switches.switch(AccessSwitch(authentication_enabled=True)).preview()
    own = [warning for warning in preview.warnings if warning.startswith("Requests from here")]
    assert [text.removeprefix("Requests from here are ").partition(": it may")[0] for text in own] == said
    own_user = await services.access_changes.delete_user(account).preview() if account == "alice" else None
    if own_user is not None:
        assert any("Requests from here are signed as alice" in warning for warning in own_user.warnings)
    assert (await services.access.state()).is_signing
    await services.close()


async def test_each_stock_broker_has_users_of_its_own_and_no_password_is_shown() -> None:
    brokers, master, slave = stock_pair(STORED)
    slave.users["alice"] = {
        "username": "alice",
        "password": SECRET,
        "userType": "Super",
        "userStatus": "enable",
    }
    async with asking(brokers) as client:
        row = answered(await client.get("/users"))["items"][0]
        names = [f"broker-s at {MASTER}", f"broker-s at {SLAVE}"]
        assert (row["places"], row["missingPlaces"]) == (names[1:], names[:1])
        created = await made(client, "POST", "/users", ALICE)
        assert [effect["subject"] for effect in created["effects"]] == names[:1]
        assert created["warnings"] == [f"{names[1]} has it already and keeps it."]
        users = await client.get("/users")
        assert answered(users)["items"][0]["userType"] is None, "they differ"
        assert SECRET not in users.text
        await made(client, "POST", "/policies/alice", ORDERS)
        policy = answered(await client.get("/users/alice"))["policies"][0]
        assert policy["places"] == names
        places = answered(await client.get("/access"))["places"]
        problem = await made(client, "PATCH", "/access", {"authenticationEnabled": False}, 409)
        slave.users.clear()
        brokers.dead.add(MASTER)
        left = answered(await client.get("/users/alice"), 503)
    assert master.users["alice"]["password"] == SECRET
    assert [(place["place"], place["mode"], place["canSwitch"]) for place in places] == [
        (name, "authentication", False) for name in names
    ]
    assert "RocketMQ reads authenticationEnabled" in problem["detail"]
    assert "Whether The user alice exists is unknown" in left["detail"]


@pytest.mark.parametrize(
    ("version", "settings", "mode", "said"),
    [
        (V4_9_7, {"aclEnable": "true"}, "accounts", "RocketMQ keeps users from 5.3 on"),
        (V5_4_0, {}, "off", "once authenticationMetadataProvider is set"),
    ],
)
async def test_stock_brokers_that_keep_no_users(
    version: int, settings: dict[str, str], mode: str, said: str
) -> None:
    brokers, _, _ = stock_pair(settings, version)
    async with asking(brokers) as client:
        places = answered(await client.get("/access"))["places"]
        assert {(place["mode"], place["keepsUsers"], place["userCount"]) for place in places} == {
            (mode, False, None)
        }
        assert said in places[0]["remedy"]
        page = answered(await client.get("/users"))
        assert (page["isPartial"], page["items"]) == (True, [])
        assert said in page["problems"][0]["problem"]
        assert said in (await made(client, "POST", "/users", ALICE, 409))["detail"]


async def test_a_mixed_cluster_is_changed_where_that_is_possible(tmp_path: Path) -> None:
    stocks, _, _ = stock_pair({}, V4_9_7)

    class Mixed(GuardedBrokers):
        async def invoke(self, address: str, command: Any, timeout_s: float = 3.0) -> Any:
            if address in (MASTER, SLAVE):
                return await stocks.invoke(address, command, timeout_s)
            return await super().invoke(address, command, timeout_s)

    brokers: FakeBrokers = Mixed(tmp_path, **OFF)
    brokers.listed.update(stocks.listed)
    async with asking(brokers) as client:
        created = await made(client, "POST", "/users", ALICE)
        switched = await made(client, "PATCH", "/access", {"authenticationEnabled": True})
        named = {"authenticationEnabled": False, "brokers": ["broker-s"]}
        refused = await made(client, "PATCH", "/access", named, 409)
    assert (created["isPartial"], [outcome["subject"] for outcome in created["outcomes"]]) == (
        False,
        ["broker-a"],
    )
    assert "keeps no users" in created["warnings"][0]
    assert switched["warnings"][0].startswith(f"broker-s at {MASTER} stays as it is. RocketMQ keeps users")
    assert refused["detail"].startswith(f"broker-s at {MASTER}: ")


async def test_a_broker_that_is_silent_is_left_out() -> None:
    brokers, master, _ = stock_pair(STORED)
    brokers.dead.add(SLAVE)
    async with asking(brokers) as client:
        result = await made(client, "POST", "/users", ALICE)
        assert [(outcome["subject"], outcome["ok"]) for outcome in result["outcomes"]] == [
            (f"broker-s at {MASTER}", True),
            (SLAVE, False),
        ]
        assert result["isPartial"]
        assert answered(await client.get("/users"))["isPartial"]
        brokers.dead.clear()
        await made(client, "POST", "/users", ALICE)
    assert "alice" in master.users


async def test_who_may_see_and_who_may_change(tmp_path: Path) -> None:
    policy = policy_for("127.0.0.1", TOKENS)
    app = create_app(Settings(NAMESRV), GuardedBrokers(tmp_path), policy=policy)
    async with asking_app(app) as client:

        async def status(token: str, method: str, path: str, body: Any = None) -> int:
            return (await client.request(method, path, json=body, headers=bearer(token))).status_code

        assert await status(READ, "GET", "/access") == 200
        for path in ("/users", "/users/root", "/policies", "/policies/root"):
            assert (await status(READ, "GET", path), await status(OPERATE, "GET", path)) == (403, 200)
        for method, path, body in (
            ("POST", "/users", ALICE),
            ("PATCH", "/users/root", {"userStatus": "disable"}),
            ("DELETE", "/users/root", None),
            ("POST", "/policies/root", ORDERS),
            ("PUT", "/policies/root", ORDERS),
            ("DELETE", "/policies/root", None),
            ("PATCH", "/access", {"authenticationEnabled": False}),
        ):
            assert await status(OPERATE, method, path, body) == 403
        assert await status(ADMIN, "POST", "/users", ALICE) == 200


async def test_an_answer_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    brokers, master, _ = stock_pair(STORED)
    master.users["alice"] = {"username": ""}
    brokers.bodies[Code.AUTH_LIST_USER] = b"{}"
    master.answer = lambda command: type(command)(code=0, body=b'{"a":1}')  # type: ignore[method-assign]
    async with asking(brokers) as client:
        page = answered(await client.get("/users"))
        answered(await client.get("/users/alice"), 503)
    assert f"{MASTER}: its list of users cannot be read: it is no list" in page["problems"][0]["problem"]


def test_the_description_shows_no_password() -> None:
    described = create_app(Settings(NAMESRV), FakeBrokers()).openapi()
    fields = {
        name: schema["properties"]["password"]
        for name, schema in described["components"]["schemas"].items()
        if "password" in schema.get("properties", {})
    }
    assert fields.keys() == {"NewUser", "UserSpec"}
    assert "writeOnly" in str(fields["NewUser"])
    assert not any("example" in str(field) for field in fields.values())
