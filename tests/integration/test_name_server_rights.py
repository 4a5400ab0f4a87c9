"""A name server that knows its brokers, by certificates and by accounts: what strangers send is refused, the
route stays right, and keys are replaced while the name server runs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import orjson
import pytest

from ledgermq.certificates import KeyPair, issue, make_authority
from remoting.acl import Signer
from remoting.client.blocking import Connection
from remoting.client.tls import ClientTls
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RemotingError
from remoting.route import parse_cluster_info
from sockets.tls import TlsCredentials, TlsFiles
from tests.integration.client_runs import ROOT
from tests.integration.cluster import COMMAND, free_ports
from tests.integration.waiting import wait_for
from tests.support.children import ending_with_parent

pytestmark = pytest.mark.integration
BROKER = "broker-a"
LIMIT_S = 20.0
STRANGER = "127.0.0.1:1"
NO_PERMISSION = 16
Dial = Callable[[], Connection]


def registration(
    addr: str, version: int = 1 << 30, topic: str = "Stolen", broker_name: str = BROKER
) -> RemotingCommand:
    """103 as the newest leader of the group would send it."""
    row = {"topicName": topic, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 0}
    wrapper = {
        "dataVersion": {"stateVersion": version, "timestamp": 1, "counter": 1},
        "topicConfigTable": {topic: row},
    }
    body = orjson.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})
    ext = {"brokerName": broker_name, "brokerAddr": addr, "clusterName": "DefaultCluster"}
    ext |= {"brokerId": "0", "haServerAddr": addr, "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)}
    return RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=ext, body=body)


def forged(addrs: Mapping[int, str]) -> list[RemotingCommand]:
    """All that would change the route of the broker."""
    made = [
        registration(STRANGER),
        registration(STRANGER, 2**63 - 1),
        registration(STRANGER, broker_name="x"),
    ]
    for broker_id, addr in addrs.items():
        ext = {"brokerName": BROKER, "brokerAddr": addr, "clusterName": "DefaultCluster"}
        ext["brokerId"] = str(broker_id)
        made += [registration(addr), registration(addr, 2**63 - 1)]
        made.append(RemotingCommand(RequestCode.UNREGISTER_BROKER, ext_fields=ext))
        version = orjson.dumps({"stateVersion": 0, "timestamp": 0, "counter": 2**63 - 1})
        made.append(RemotingCommand(RequestCode.QUERY_DATA_VERSION, ext_fields=ext, body=version))
        made.append(RemotingCommand(RequestCode.BROKER_HEARTBEAT, ext_fields=ext))
    return made


def administrators() -> list[RemotingCommand]:
    item = {"namespace": "N", "key": "k", "value": "v"}
    return [
        RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=dict(item)),
        RemotingCommand(RequestCode.DELETE_KV_CONFIG, ext_fields=dict(item)),
        RemotingCommand(RequestCode.WIPE_WRITE_PERM_OF_BROKER, ext_fields={"brokerName": BROKER}),
        RemotingCommand(RequestCode.ADD_WRITE_PERM_OF_BROKER, ext_fields={"brokerName": BROKER}),
        RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext_fields={"topic": "TBW102"}),
        RemotingCommand(RequestCode.REGISTER_TOPIC_IN_NAMESRV, ext_fields={"topic": "T"}, body=b"{}"),
        RemotingCommand(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=false"),
    ]


class Place:
    """One name server and one broker, each started and ended by itself, in a folder and on ports of their
    own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        namesrv_port, self.broker_port, _ = free_ports(1)
        self.namesrv = f"127.0.0.1:{namesrv_port}"
        self.broker = f"127.0.0.1:{self.broker_port}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, cwd: Path | None = None) -> None:
        command = ending_with_parent([sys.executable, "-P", "-m", *arguments])
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, cwd=cwd or self.folder, stderr=log)

    def end(self, name: str) -> None:
        process = self._running.pop(name)
        process.terminate()
        process.wait(LIMIT_S)

    def close(self) -> None:
        for name in list(self._running):
            self.end(name)

    def start_namesrv(self, *options: str, cwd: Path | None = None) -> None:
        host, _, port = self.namesrv.rpartition(":")
        self.start("namesrv", "namesrv", "--host", host, "--port", port, *options, cwd=cwd)
        wait_for("the name server answers", self.answers, LIMIT_S)

    def answers(self) -> bool:
        try:
            self.dial().close()
        except ConnectFailedError:
            return False
        return True

    def dial(self, tls: TlsCredentials | None = None, signer: Signer | None = None) -> Connection:
        return Connection(self.namesrv, LIMIT_S, tls, signer)

    def addresses(self) -> Mapping[int, str]:
        """The broker's nodes by id, as any client is told."""
        with self.dial() as plain:
            answer = plain.invoke(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        broker = parse_cluster_info(answer.body).brokers.get(BROKER)
        return {} if broker is None else broker.broker_addrs

    def wait_registered(self) -> None:
        wait_for(f"{BROKER} is registered", lambda: self.addresses() == {0: self.broker}, LIMIT_S)

    def assert_refused(self, *dials: Dial) -> None:
        """Everything forged gets code 16 on each connection, and the broker stays where it is."""
        for dial in dials:
            with dial() as connection:
                for request in forged({0: self.broker}):
                    answer = connection.invoke(request)
                    assert answer.code == NO_PERMISSION, (request.code, answer)
        assert self.addresses() == {0: self.broker}
        with self.dial() as plain:
            for topic, code in (("Stolen", 17), ("TBW102", 0)):
                asked = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})
                assert plain.invoke(asked).code == code


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        made = Place(tmp_path)
        stack.callback(made.close)
        yield made


class Certified:
    """What `ledgermq cluster init --namesrv-tls` made, and copies of it as on the machines."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.made = place.folder / "made"
        port = str(place.broker_port)
        init = ("init", "--namesrv", place.namesrv, "--port", port, "--node", "n0=127.0.0.1", "--namesrv-tls")
        said = self.command(*init)
        (line,) = [line for line in said.splitlines() if line.startswith("python -m namesrv")]
        self.options = line.partition("--host ADDRESS ")[2].split()
        self.copy()

    def command(self, name: str, *options: str) -> str:
        ran = subprocess.run(
            [str(COMMAND), "cluster", name, "--data", str(self.made), *options],
            capture_output=True,
            cwd=ROOT,
            text=True,
            timeout=60,
            check=True,
        )
        return ran.stdout + ran.stderr

    def copy(self) -> None:
        for name in ("namesrv", "n0"):
            shutil.copytree(self.made / name, self.machine(name), dirs_exist_ok=True)

    def machine(self, name: str) -> Path:
        return self._place.folder / "machines" / name

    def start(self) -> None:
        self._place.start_namesrv(*self.options, cwd=self.machine("namesrv"))
        self.start_broker()

    def start_broker(self) -> None:
        self._place.start("broker", "broker", "--config", "broker.toml", cwd=self.machine("n0"))
        self._place.wait_registered()

    def credentials(self, name: str, uri: str, *, is_trusted: bool = True) -> TlsCredentials:
        """A new certificate, of the group's authority or of one that has its name only."""
        folder = self._place.folder
        own = make_authority(f"LedgerMQ {BROKER}")
        certificates = self.made / "certificates"
        signing = KeyPair.load(certificates / "ca.pem", certificates / "ca.key") if is_trusted else own
        issue(signing, name, ("127.0.0.1",), (uri,)).save(folder / f"{name}.pem", folder / f"{name}.key")
        return TlsCredentials(
            TlsFiles(folder / f"{name}.pem", folder / f"{name}.key", certificates / "ca.pem"), "client"
        )


def test_strangers_cannot_speak_for_a_broker_that_has_a_certificate(place: Place) -> None:
    certified = Certified(place)
    certified.start()
    neighbour = certified.credentials("neighbour", "ledgermq://broker-b/n0")
    without = ClientTls(certified.made / "certificates" / "ca.pem").credentials()
    place.assert_refused(place.dial, partial(place.dial, without), partial(place.dial, neighbour))
    impostor = certified.credentials("impostor", f"ledgermq://{BROKER}/n0", is_trusted=False)
    with pytest.raises(RemotingError), place.dial(impostor) as connection:
        connection.invoke(registration(STRANGER))

    for step in ("add-authority", "renew", "remove-old-authorities"):
        certified.command(step)
        certified.copy()
    place.end("broker")
    wait_for(f"{BROKER} has left", lambda: not place.addresses(), LIMIT_S)
    certified.start_broker()
    place.assert_refused(place.dial)
    with pytest.raises(RemotingError), place.dial(neighbour) as connection:
        connection.invoke(registration(STRANGER))


def accounts_text(*rows: tuple[str, str, bool]) -> str:
    return "".join(
        f'[[accounts]]\naccess_key = "{key}"\nsecret_key = "{secret}"\nadmin = {str(admin).lower()}\n'
        for key, secret, admin in rows
    )


def write_private(path: Path, text: str) -> None:
    beside = path.with_name("beside")
    beside.touch(0o600)
    beside.write_text(text)
    beside.replace(path)


def start_signing_broker(place: Place, secret: str) -> None:
    account = json.dumps({"accessKey": BROKER, "secretKey": secret})
    values: dict[str, object] = {"listenPort": place.broker_port, "namesrvAddr": place.namesrv}
    values |= {"storePathRootDir": str(place.folder / "store"), "brokerIP1": "127.0.0.1"}
    values["innerClientAuthenticationCredentials"] = account
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    write_private(place.folder / "broker.toml", text)
    place.start("broker", "broker", "--config", "broker.toml")
    place.wait_registered()


def test_strangers_cannot_speak_for_a_broker_that_has_an_account(place: Place) -> None:
    old, new = "the first secret", "the second secret"
    operator = ("operator", "the operator's secret", True)
    file = place.folder / "accounts.toml"
    write_private(file, accounts_text((BROKER, old, False), operator, ("other", "another secret", False)))
    place.start_namesrv("--accounts", str(file), "--broker-identity", f"{BROKER}=account:{BROKER}")
    start_signing_broker(place, old)
    others = (Signer(BROKER, "a wrong secret"), Signer("nobody", old), Signer("other", "another secret"))
    place.assert_refused(place.dial, *(partial(place.dial, signer=signer) for signer in others))
    for signer, code in (
        (None, NO_PERMISSION),
        (Signer(BROKER, old), NO_PERMISSION),
        (Signer(*operator[:2]), 0),
    ):
        with place.dial(signer=signer) as connection:
            for request in administrators():
                assert connection.invoke(request).code == code, (signer, request.code)

    write_private(file, accounts_text((BROKER, old, False), (BROKER, new, False), operator))
    place.end("broker")
    start_signing_broker(place, new)
    write_private(file, accounts_text((BROKER, new, False), operator))
    place.assert_refused(place.dial, partial(place.dial, signer=Signer(BROKER, old)))
