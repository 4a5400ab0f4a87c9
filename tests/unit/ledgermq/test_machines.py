"""A cluster over machines: where its members are, what the folder of each has, and how one more is added."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from broker.config import BrokerConfig, load_config
from ledgermq.errors import UserError
from ledgermq.machines.files import Cluster
from ledgermq.machines.plan import (
    MachinesPlan,
    counts_for,
    load_machine,
    next_member,
    parse_machines,
)
from ledgermq.machines.unit import LIMITS, STAGES, STOP_S, unit_text
from namesrv.rights import parse_broker_identities
from tests.unit.ledgermq.running import CommandLine, Ran

THREE = "a=10.0.0.1,b=10.0.0.2,c=10.0.0.3"
Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`run("renew")` is `ledgermq cluster renew` in the test's folder."""
    command_line = CommandLine(monkeypatch, capsys)
    return lambda *args: command_line("cluster", *args, "--data", str(tmp_path))


def init(run: Run, machines: str = THREE, *options: str) -> None:
    made = run("init", "--machines", machines, *options)
    assert made.code == 0, made.err


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def config_of(folder: Path, node: str) -> BrokerConfig:
    return load_config(folder / node / "broker.toml")


def plan_of(count: int) -> MachinesPlan:
    addresses = {f"m{number}": f"10.0.0.{number}" for number in range(count)}
    return MachinesPlan(addresses, counts_for(count, None, None, None))


def spread(plan: MachinesPlan) -> dict[str, list[str]]:
    """Broker -> its members as `id@machine`; the preferred leader has a star."""
    return {
        broker: [
            f"{node}@{machine}{'*' if node == plan.preferred(group) else ''}"
            for node, machine in plan.placed(group).items()
        ]
        for group, broker in enumerate(plan.brokers)
    }


def test_a_machine_gets_what_belongs_on_it_and_nothing_of_others(run: Run, tmp_path: Path) -> None:
    init(run)
    nodes = [f"{node}/broker.toml" for node in ("n1", "n11", "n21")]
    keys = [f"certificates/{name}.{kind}" for name in ("n1", "n11", "n21") for kind in ("key", "pem")]
    namesrv = ["certificates/namesrv-b.key", "certificates/namesrv-b.pem"]
    files = ["certificates/ca.pem", "ledgermq.service", "machine.toml", *nodes, *keys]
    assert listing(tmp_path / "b") == sorted([*files, *namesrv])
    assert [path for path in listing(tmp_path / "c") if "namesrv" in path] == []
    assert [path for path in listing(tmp_path) if path.endswith("ca.key")] == ["certificates/ca.key"]
    open_to_others = [path for path in tmp_path.rglob("*.key") if path.stat().st_mode & 0o077]
    assert open_to_others == []


def test_machine_toml_says_what_runs_there(run: Run, tmp_path: Path) -> None:
    init(run, THREE, "--grpc-port", "0")
    lines = (tmp_path / "c" / "machine.toml").read_text().splitlines()
    assert lines[1:] == [
        "version = 1",
        'name = "c"',
        'address = "10.0.0.3"',
        'home = "/var/lib/ledgermq"',
        'brokers = ["broker-a", "broker-b", "broker-c"]',
        'nodes = ["n2", "n12", "n22"]',
        'namesrvAddr = "10.0.0.1:9876;10.0.0.2:9876"',
        "namesrvPort = 0",
        'adminAddress = "127.0.0.1"',
        "adminPort = 0",
        "grpcPort = 0",
        'clientTls = "disabled"',
    ]
    assert load_machine(tmp_path / "a").namesrv_port == 9876


def test_a_broker_toml_is_what_the_broker_reads(run: Run, tmp_path: Path) -> None:
    init(run, THREE, "--port", "20000", "--home", "/srv/shop", "--name", "shop-a")
    config = config_of(tmp_path / "c", "n12")
    assert (config.group, config.dledger_self_id, config.preferred_leader_id) == ("shop-b", "n12", "n11")
    assert (config.broker_ip, config.bind_address, config.listen_port) == ("10.0.0.3", "10.0.0.3", 20_010)
    assert [f"{peer.id} {peer.host}:{peer.port}" for peer in config.peers] == [
        "n10 10.0.0.1:20013",
        "n11 10.0.0.2:20013",
        "n12 10.0.0.3:20013",
    ]
    assert (config.metrics_port, config.namesrv_tls_enable) == (20_015, True)
    assert config.store_path_root_dir == Path("/srv/shop/n12/store")
    assert config.replication_tls is not None
    assert config.replication_tls.key == Path("/srv/shop/certificates/n12.key")
    assert not config.dledger_join
    assert config.tls_mode is None


def test_clients_tls_uses_the_members_certificates(run: Run, tmp_path: Path) -> None:
    init(run, THREE, "--tls", "enforcing")
    config = config_of(tmp_path / "a", "n0")
    assert (config.tls_mode, config.tls_certificate) == (
        "enforcing",
        Path("/var/lib/ledgermq/certificates/n0.pem"),
    )
    assert load_machine(tmp_path / "a").client_tls == "enforcing"


def test_each_machine_leads_one_group() -> None:
    assert spread(plan_of(3)) == {
        "broker-a": ["n0@m0*", "n1@m1", "n2@m2"],
        "broker-b": ["n10@m0", "n11@m1*", "n12@m2"],
        "broker-c": ["n20@m0", "n21@m1", "n22@m2*"],
    }
    assert spread(plan_of(1)) == {"broker-a": ["n0@m0*"]}


def test_a_group_of_five_machines_is_on_three_that_follow_each_other() -> None:
    assert spread(plan_of(5)) == {
        "broker-a": ["n0@m0*", "n1@m1", "n2@m2"],
        "broker-b": ["n10@m1*", "n11@m2", "n12@m3"],
        "broker-c": ["n20@m2*", "n21@m3", "n22@m4"],
        "broker-d": ["n30@m0", "n31@m3*", "n32@m4"],
        "broker-e": ["n40@m0", "n41@m1", "n42@m4*"],
    }
    assert {name: len(plan_of(5).members(name)) for name in plan_of(5).addresses} == dict.fromkeys(
        plan_of(5).addresses, 3
    )


@pytest.mark.parametrize("count", range(1, 10))
def test_every_machine_has_a_member_and_members_of_a_group_are_on_different_ones(count: int) -> None:
    plan = plan_of(count)
    assert {plan.placed(at)[plan.preferred(at)] for at in range(count)} == {*plan.addresses}
    for group in range(count):
        placed = plan.placed(group)
        assert len(placed) == len({*placed.values()}) == min(count, 3)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--machines", "a=10.0.0.1,a=10.0.0.2"], "given twice"),
        (["--machines", "a=10.0.0.1,b=10.0.0.1"], "given twice"),
        (["--machines", "a=broker.example"], "IPv4"),
        (["--machines", "a"], "IPv4"),
        (["--machines", "a=10.0.0.1,"], "cannot be the name"),
        (["--machines", "../a=10.0.0.1"], "cannot be the name"),
        (["--machines", "certificates=10.0.0.1"], "cannot be the name"),
        (["--machines", ",".join(f"10.0.0.{at}" for at in range(10))], "1 to 9"),
        (["--machines", "a=10.0.0.1", "--replicas", "2"], "--replicas 2 are more than the 1 machines"),
        (["--machines", "a=10.0.0.1", "--namesrvs", "2"], "--namesrvs 2 are more"),
        (["--machines", "a=10.0.0.1,b=10.0.0.2,c=10.0.0.3,10.0.0.4", "--groups", "1"], "1 of the 4 machines"),
        (["--machines", "a=10.0.0.1", "--node", "n0=10.0.0.1"], "--machines, or the members"),
        ([], "--machines, or the members"),
        (["--node", "n0=10.0.0.1", "--groups", "2"], "need --machines"),
        (["--machines", "a=10.0.0.1", "--grpc-port", "9876"], "port 9876 would be used twice"),
    ],
)
def test_what_makes_no_cluster_is_refused(run: Run, tmp_path: Path, options: list[str], why: str) -> None:
    refused = run("init", *options)
    assert refused.code in (1, 2)
    assert why in refused.err
    assert listing(tmp_path) == []


def test_groups_of_two_are_warned_of(run: Run) -> None:
    made = run("init", "--machines", "a=10.0.0.1,b=10.0.0.2")
    assert (made.code, "stops when one of them does" in made.err) == (0, True)


def test_an_address_alone_is_its_own_name() -> None:
    assert parse_machines(["10.0.0.1, b=10.0.0.2", "10.0.0.3"]) == {
        "10.0.0.1": "10.0.0.1",
        "b": "10.0.0.2",
        "10.0.0.3": "10.0.0.3",
    }


def test_what_was_made_is_not_made_again(run: Run, tmp_path: Path) -> None:
    init(run)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = run("init", "--machines", THREE)
    assert (again.code, f"{tmp_path / 'a'} is there already" in again.err) == (1, True)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_name_servers_know_the_members_of_every_group_by_their_certificates(run: Run, tmp_path: Path) -> None:
    init(run)
    machine = load_machine(tmp_path / "b")
    identities = parse_broker_identities([broker.option() for broker in machine.known_brokers()])
    for node in ("n1", "n11", "n21"):
        pem = (tmp_path / "b" / "certificates" / f"{node}.pem").read_bytes()
        names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        (uri,) = names.value.get_values_for_type(x509.UniformResourceIdentifier)
        broker = config_of(tmp_path / "b", node).broker_name
        assert [name for name, own in identities.items() if uri in str(own)] == [broker]
        assert [str(ip) for ip in names.value.get_values_for_type(x509.IPAddress)] == ["10.0.0.2"]


def test_new_certificates_reach_the_folders_of_their_machines(run: Run, tmp_path: Path) -> None:
    init(run)

    def contents() -> dict[str, bytes]:
        return {
            path: (tmp_path / path).read_bytes() for path in listing(tmp_path) if "/certificates/" in path
        }

    def changed(before: dict[str, bytes]) -> set[str]:
        return {path for path, data in contents().items() if data != before[path]}

    before = contents()
    assert run("renew", "n11", "namesrv-a").code == 0
    assert changed(before) == {
        *(f"b/certificates/n11.{kind}" for kind in ("key", "pem")),
        *(f"a/certificates/namesrv-a.{kind}" for kind in ("key", "pem")),
    }
    before = contents()
    assert run("add-authority").code == 0
    assert changed(before) == {f"{machine}/certificates/ca.pem" for machine in "abc"}
    assert contents().keys() == before.keys(), "no machine gets files of others"


def test_one_more_machine_has_a_joining_member_of_each_group(run: Run, tmp_path: Path) -> None:
    init(run, THREE, "--tls", "permissive")
    added = run("add-member", "d=10.0.0.4")
    assert added.code == 0, added.err
    assert "ledgermq member add n13 10.0.0.4:10924 --group broker-b" in added.err
    machine = load_machine(tmp_path / "d")
    assert (machine.nodes, machine.namesrv_port, machine.admin_port) == (("n3", "n13", "n23"), 0, 0)
    assert machine.namesrv_addr == load_machine(tmp_path / "a").namesrv_addr
    config = config_of(tmp_path / "d", "n13")
    assert (config.group, config.dledger_join, config.preferred_leader_id) == ("broker-b", True, "n11")
    assert [peer.id for peer in config.peers] == ["n10", "n11", "n12", "n13"]
    assert (config.tls_mode, config.listen_port) == ("permissive", 10_921)
    assert run("add-member", "e=10.0.0.5").code == 0
    assert load_machine(tmp_path / "e").nodes == ("n4", "n14", "n24")
    for taken in ("d=10.0.0.9", "f=10.0.0.4"):
        refused = run("add-member", taken)
        assert (refused.code, "there is a machine d with the address 10.0.0.4" in refused.err) == (1, True)


def test_ids_of_a_group_are_used_once() -> None:
    assert next_member(1, ["n0", "n10", "n12"]) == "n13"
    with pytest.raises(UserError, match="has had 9 members"):
        next_member(0, ["n8"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("version = 2\n", "version"),
        ("version = \n", "not a TOML file"),
        ("grpcProt = 1\n", "grpcProt"),
        ("namesrvPort = 70000\n", "namesrvPort"),
    ],
)
def test_a_machine_toml_that_cannot_be_used(run: Run, tmp_path: Path, text: str, why: str) -> None:
    init(run)
    path = tmp_path / "a" / "machine.toml"
    name = text.partition(" ")[0]
    kept = [line for line in path.read_text().splitlines() if not line.startswith(f"{name} ")]
    path.write_text(text + "\n".join(kept))
    with pytest.raises(UserError, match=why) as raised:
        load_machine(tmp_path / "a")
    assert str(path) in str(raised.value)


def test_no_machine_toml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no .*machine.toml: copy the folder"):
        load_machine(tmp_path)
    assert Cluster.load(tmp_path) is None


def test_the_unit_waits_longer_than_the_supervisor_stops() -> None:
    text = unit_text("a", Path("/srv/a%b $x"), Path("/opt/led ger/bin/ledgermq"))
    assert STAGES * LIMITS.stop_s < STOP_S
    lines = text.splitlines()
    start = 'ExecStart="/opt/led ger/bin/ledgermq" machine up --home "/srv/a%%b $$x"'
    wanted = {"Type=notify", "Restart=always", "KillMode=mixed", f"TimeoutStopSec={STOP_S}", start}
    assert wanted - {*lines} == set()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "ledgermq.service"
    for home, program in (
        (Path("/var/lib/ledgermq"), Path("/bin/true")),
        (tmp_path / "a b", Path("/bin/sh")),
    ):
        path.write_text(unit_text("a", home, program))
        verified = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    path.write_text(unit_text("a", tmp_path, Path("/bin/true")).replace("KillMode=mixed", "KillMood=mixed"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60
    )
    assert "KillMood" in verified.stderr, "a wrong key is noticed"


def test_one_more_group_has_a_member_on_each_machine(run: Run, tmp_path: Path) -> None:
    init(run, THREE, "--tls", "permissive")
    unit = (tmp_path / "a" / "ledgermq.service").read_text()
    added = run("add-group")
    assert added.code == 0, added.err
    assert f"{tmp_path}/b/{{n31,certificates,machine.toml}}: copy them to 10.0.0.2" in added.err
    assert "ledgermq replication copy-settings broker-a broker-d" in added.err
    machines = {name: load_machine(tmp_path / name) for name in "abc"}
    assert machines["b"].nodes == ("n1", "n11", "n21", "n31")
    assert {machine.brokers[3:] for machine in machines.values()} == {("broker-d",)}
    config = config_of(tmp_path / "b", "n31")
    assert (config.group, config.preferred_leader_id, config.listen_port) == ("broker-d", "n30", 10_941)
    assert [(peer.id, peer.host, peer.port) for peer in config.peers] == [
        ("n30", "10.0.0.1", 10_944),
        ("n31", "10.0.0.2", 10_944),
        ("n32", "10.0.0.3", 10_944),
    ]
    assert (config.dledger_join, config.tls_mode) == (False, "permissive")
    assert {"n31.pem", "n31.key"} <= {each.name for each in (tmp_path / "b" / "certificates").iterdir()}
    assert "n30.key" not in {each.name for each in (tmp_path / "b" / "certificates").iterdir()}
    assert (tmp_path / "a" / "ledgermq.service").read_text() == unit


def test_one_more_group_on_some_machines(run: Run, tmp_path: Path) -> None:
    init(run)
    refused = run("add-group", "--machines", "a,x")
    assert (refused.code, "there is no machine x; there are a, b, c" in refused.err) == (1, True)
    assert run("add-group", "--machines", "c").code == 0
    assert load_machine(tmp_path / "c").nodes == ("n2", "n12", "n22", "n30")
    assert load_machine(tmp_path / "a").nodes == ("n0", "n10", "n20")
    assert load_machine(tmp_path / "a").brokers[-1] == "broker-d"
    for _ in range(5):
        assert run("add-group").code == 0
    assert "can have no more" in run("add-group").err


def test_one_more_group_of_five_machines_is_where_a_sixth_would_have_been(run: Run, tmp_path: Path) -> None:
    init(run, ",".join(f"{name}=10.0.0.{at}" for at, name in enumerate("abcde", 1)), "--groups", "4")
    added = run("add-group")
    assert added.code == 0, added.err
    here = {
        name for name in "abcde" if any(node.startswith("n4") for node in load_machine(tmp_path / name).nodes)
    }
    assert here == {"a", "b", "e"}


def test_a_group_is_taken_out_and_its_name_is_not_used_again(run: Run, tmp_path: Path) -> None:
    init(run)
    removed = run("remove-group", "broker-b")
    assert removed.code == 0, removed.err
    assert f"{tmp_path}/a/machine.toml: copy it to 10.0.0.1" in removed.err
    assert load_machine(tmp_path / "a").nodes == ("n0", "n20")
    assert (tmp_path / "a" / "n10" / "broker.toml").exists()
    assert "no machine has a member of broker-b" in run("remove-group", "broker-b").err
    assert run("add-group").code == 0
    assert load_machine(tmp_path / "a").nodes == ("n0", "n20", "n30")
    assert run("remove-group", "broker-c").code == run("remove-group", "broker-d").code == 0
    assert "broker-a is the only group" in run("remove-group", "broker-a").err


def test_groups_of_no_machines(run: Run) -> None:
    assert "there is no machine in" in run("add-group").err
