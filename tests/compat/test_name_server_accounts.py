"""A name server that knows brokers and administrators by their signatures, with RocketMQ's own broker and
mqadmin, and with the admin service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from remoting.acl import Signer
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.compat.mqadmin import ERROR_TEXT, MqAdmin, compile_runner
from tests.compat.stock_cluster import LIMIT_S, PORTS_FROM, VERSIONS
from tests.integration.test_admin_schema import serving
from tests.integration.test_name_server_rights import (
    NO_PERMISSION,
    Place,
    accounts_text,
    registration,
    write_private,
)
from tests.spark.stock_broker import PORTS_FOR_ONE, StockBroker

pytestmark = pytest.mark.integration
NODE, OPERATOR = ("node-account", "node-s3cret"), ("operator-account", "operator-s3cret")
REFUSED = "needs an account marked admin"
PROVIDER = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
KEYS = ("LEDGERMQ_ACCESS_KEY", "LEDGERMQ_SECRET_KEY")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Our name server, and a broker of RocketMQ that signs as NODE."""
    compile_runner()
    with ExitStack() as stack:
        place = Place(tmp_path_factory.mktemp("accounts"))
        stack.callback(place.close)
        file = place.folder / "accounts.toml"
        write_private(file, accounts_text((*NODE, False), (*OPERATOR, True)))
        place.start_namesrv("--accounts", str(file), "--broker-identity", f"stock=account:{NODE[0]}")
        ports_from = PORTS_FROM + (len(VERSIONS) + 1) * PORTS_FOR_ONE
        broker = StockBroker(place.folder, "5.5.0", ports_from, namesrv=place.namesrv)
        stack.callback(broker.kill)
        account = json.dumps(dict(zip(("accessKey", "secretKey"), NODE, strict=True)))
        broker.start(innerClientAuthenticationCredentials=account, authenticationMetadataProvider=PROVIDER)
        yield place


def test_a_stock_broker_signs_its_registration_and_strangers_cannot(place: Place) -> None:
    for signer in (None, Signer(NODE[0], "a wrong secret"), Signer(*OPERATOR)):
        with place.dial(signer=signer) as connection:
            forged = registration("127.0.0.1:1", broker_name="stock")
            assert connection.invoke(forged).code == NO_PERMISSION
    with place.dial() as plain:
        asked = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "TBW102"})
        assert plain.invoke(asked).code == 0


@pytest.mark.parametrize("account", [None, OPERATOR])
def test_mqadmin_changes_it_with_an_administrators_account(
    place: Place, tmp_path: Path, account: tuple[str, str] | None
) -> None:
    mqadmin = MqAdmin(place.namesrv, tmp_path, account)
    printed: list[str] = []
    try:
        for words in (
            ("updateKvConfig", "-s", "Colors", "-k", "sky", "-v", "blue"),
            ("wipeWritePerm", "-b", "stock"),
            ("addWritePerm", "-b", "stock"),
            ("deleteKvConfig", "-s", "Colors", "-k", "sky"),
            ("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false"),
        ):
            mqadmin.begin(printed.append, *words)
        mqadmin.finish()
    finally:
        mqadmin.stop()
    for text in printed:
        if account is None:
            assert REFUSED in text, text
        else:
            assert not ERROR_TEXT.search(text), text


@pytest.mark.parametrize("account", [None, OPERATOR])
def test_the_admin_service_signs_as_its_account(
    place: Place, monkeypatch: pytest.MonkeyPatch, account: tuple[str, str] | None
) -> None:
    if account is not None:
        for key, value in zip(KEYS, account, strict=True):
            monkeypatch.setenv(key, value)
    headers = {"X-LedgerMQ-Request": "1"}
    with (
        serving(place.namesrv) as url,
        httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=LIMIT_S) as http,
    ):
        change = {"values": {"orderMessageEnable": "true"}}
        preview = http.patch("/name-server", json=change, params={"dryRun": True}).json()
        confirmed = {"dryRun": "false", "confirmation": preview["confirmation"] or ""}
        answer = http.patch("/name-server", json=change, params=confirmed)
        config = http.get("/name-server").json()["config"]
    assert config["orderMessageEnable"] == str(account is not None).lower()
    assert (REFUSED in answer.text) == (account is None), answer.text
