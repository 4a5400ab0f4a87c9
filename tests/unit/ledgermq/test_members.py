"""The certificates of a group's members: made, completed, renewed, and an authority replaced step by step."""

import datetime
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.config import load_config
from dledger.credentials import member_uri
from ledgermq import members
from ledgermq.certificates import KeyPair, issue, make_authority
from ledgermq.errors import UserError
from ledgermq.members import MemberFiles
from sockets.tls import PeerNames, TlsCredentials, TlsError, TlsFiles
from tests.unit.ledgermq.running import CommandLine, Ran

HOSTS = {"n0": ("127.0.0.1", "localhost"), "n1": ("127.0.0.1",)}


def made(folder: Path) -> MemberFiles:
    files = MemberFiles(folder)
    files.complete("g", HOSTS)
    return files


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names_shown(client: TlsFiles, server: TlsFiles) -> tuple[PeerNames, PeerNames]:
    """What two members see of each other. Raises TlsError when one does not believe the other."""
    one, other = TlsCredentials(client, "client").stream(), TlsCredentials(server, "server").stream()
    one.start()
    for _ in range(3):
        other.receive(one.take_outgoing())
        one.receive(other.take_outgoing())
    assert one.is_established
    assert other.is_established
    return one.peer_names(), other.peer_names()


def files_of(folder: Path, node: str, authorities: Path | None = None) -> TlsFiles:
    return TlsFiles(folder / f"{node}.pem", folder / f"{node}.key", authorities or folder / "ca.pem")


def test_members_have_their_names_and_keys_are_secret(tmp_path: Path) -> None:
    made(tmp_path)
    of_n1, of_n0 = names_shown(files_of(tmp_path, "n0"), files_of(tmp_path, "n1"))
    assert (of_n0.uris, of_n1.uris) == (("ledgermq://g/n0",), ("ledgermq://g/n1",))
    assert of_n0.dns == ("localhost",)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.key")}
    assert modes == dict.fromkeys(("ca.key", "n0.key", "n1.key"), 0o600)


def test_a_group_may_have_characters_that_a_uri_has_not() -> None:
    assert member_uri("a%b|c", "n0") == "ledgermq://a%25b%7Cc/n0"


def test_what_is_there_and_good_is_kept(tmp_path: Path) -> None:
    files = made(tmp_path)
    before = contents(tmp_path)
    files.complete("g", HOSTS)
    assert contents(tmp_path) == before
    (tmp_path / "n1.key").unlink()
    files.complete("g", HOSTS)
    assert {name for name, data in contents(tmp_path).items() if data != before[name]} == {"n1.key", "n1.pem"}


def test_another_group_and_a_near_end_make_new_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = made(tmp_path)
    before = contents(tmp_path)
    files.complete("h", {"n0": ()})
    assert contents(tmp_path)["n0.pem"] != before["n0.pem"]
    monkeypatch.setattr(members, "RENEWED_BEFORE", datetime.timedelta(days=2000))
    before = contents(tmp_path)
    files.complete("h", {"n0": ()})
    assert contents(tmp_path)["n0.pem"] != before["n0.pem"]


def test_without_the_key_of_the_authority_the_files_are_their_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = made(tmp_path)
    (tmp_path / "ca.key").unlink()
    before = contents(tmp_path)
    monkeypatch.setattr(members, "RENEWED_BEFORE", datetime.timedelta(days=2000))
    files.complete("g", HOSTS)
    assert contents(tmp_path) == before
    with pytest.raises(UserError, match="nothing can be signed"):
        files.complete("g", {"n2": ()})


def test_the_key_of_another_authority_signs_nothing(tmp_path: Path) -> None:
    files = made(tmp_path)
    make_authority("other").save(tmp_path / "other.pem", tmp_path / "ca.key")
    with pytest.raises(UserError, match="is not the key"):
        files.renew("n0")


def test_a_replaced_authority_interrupts_nobody(tmp_path: Path) -> None:
    """At each step each member believes each other, whichever of them has the new files already."""
    folder, kept = tmp_path / "new", tmp_path / "kept"
    files = made(folder)

    def step(change: object) -> None:
        for node in HOSTS:
            files.copy_member(node, kept)
        assert callable(change)
        change()
        for one, other in ((folder, kept), (kept, folder), (folder, folder)):
            names_shown(files_of(one, "n0"), files_of(other, "n1"))

    first = (folder / "ca.pem").read_bytes()
    step(files.add_authority)
    step(files.renew)
    step(files.remove_old_authorities)
    assert first not in (folder / "ca.pem").read_bytes()
    old = tmp_path / "old.pem"
    old.write_bytes(first)
    with pytest.raises(TlsError, match="not accepted"):
        names_shown(files_of(folder, "n0", old), files_of(folder, "n1"))


def test_renewed_certificates_keep_their_names(tmp_path: Path) -> None:
    files = made(tmp_path)
    before = contents(tmp_path)
    assert files.renew() == ["n0", "n1"]
    after = contents(tmp_path)
    assert {name for name in after if after[name] == before[name]} == {"ca.pem", "ca.key"}
    of_n1, of_n0 = names_shown(files_of(tmp_path, "n0"), files_of(tmp_path, "n1"))
    assert (of_n0.uris, of_n0.dns, of_n1.uris) == (("ledgermq://g/n0",), ("localhost",), ("ledgermq://g/n1",))


def test_a_certificate_without_names_is_no_members(tmp_path: Path) -> None:
    made(tmp_path)
    authority = KeyPair.load(tmp_path / "ca.pem", tmp_path / "ca.key")
    issue(authority, "n0").save(tmp_path / "n0.pem", tmp_path / "n0.key")
    MemberFiles(tmp_path).complete("g", HOSTS)
    names, _ = names_shown(files_of(tmp_path, "n1"), files_of(tmp_path, "n0"))
    assert names.uris == ("ledgermq://g/n0",)


NODES = ("--node", "n0=127.0.0.1", "--node", "n1=127.0.0.2")


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ran]:
    """`run("renew")` is `ledgermq cluster renew` in the test's folder."""
    command_line = CommandLine(monkeypatch, capsys)
    return lambda *args: command_line("cluster", *args, "--data", str(tmp_path))


def test_a_group_for_several_machines(run: Callable[..., Ran], tmp_path: Path) -> None:
    made = run("init", "--home", "/var/lib/ledgermq", "--name", "b", "--namesrv", "127.0.0.9:1", *NODES)
    assert made.code == 0, made.err
    config = load_config(tmp_path / "n1" / "broker.toml")
    assert (config.group, config.dledger_self_id, config.broker_ip) == ("b", "n1", "127.0.0.2")
    open_to_others = [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077]
    assert open_to_others == []
    assert config.replication_tls is not None
    assert config.replication_tls.key == Path("/var/lib/ledgermq/certificates/n1.key")
    assert {path.name for path in (tmp_path / "n1" / "certificates").iterdir()} == {
        *("ca.pem", "n1.pem", "n1.key"),
    }
    of_n1, of_n0 = names_shown(
        files_of(tmp_path / "n0" / "certificates", "n0"), files_of(tmp_path / "n1" / "certificates", "n1")
    )
    assert (of_n0.uris, of_n1.uris) == (("ledgermq://b/n0",), ("ledgermq://b/n1",))


def test_name_servers_get_certificates_and_know_the_brokers(run: Callable[..., Ran], tmp_path: Path) -> None:
    made = run("init", "--name", "b", "--namesrv", "10.0.0.8:1;namesrv.example:2", "--namesrv-tls", *NODES)
    assert made.code == 0, made.err
    config = load_config(tmp_path / "n1" / "broker.toml")
    assert config.namesrv_tls is not None
    assert config.namesrv_tls.certificate == Path("certificates/n1.pem")
    assert {path.name for path in (tmp_path / "namesrv" / "certificates").iterdir()} == {
        *("ca.pem", "namesrv.pem", "namesrv.key"),
    }
    of_n1, of_namesrv = names_shown(
        files_of(tmp_path / "namesrv" / "certificates", "namesrv"),
        files_of(tmp_path / "n1" / "certificates", "n1"),
    )
    assert (of_n1.uris, of_namesrv.dns) == (("ledgermq://b/n1",), ("namesrv.example",))
    assert "copy it to 10.0.0.8 and namesrv.example" in made.err
    members = ",".join(f"certificate:ledgermq://b/{node}" for node in ("n0", "n1"))
    assert f"--tls-client-auth optional --broker-identity b={members}" in made.err
    renewed = run("renew")
    assert "n0, n1, namesrv" in renewed.err


def test_what_was_made_is_not_made_again(run: Callable[..., Ran], tmp_path: Path) -> None:
    run("init", *NODES)
    again = run("init", *NODES)
    assert (again.code, f"{tmp_path / 'n0'} is there already" in again.err) == (1, True)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (("n0", "n1=127.0.0.2"), "not of the form n0=10.0.0.1"),
        (("n0=127.0.0.1", "n0=127.0.0.2"), "given twice"),
        (("n0=broker.example",), "IPv4"),
        (("first=127.0.0.1",), "one letter and a number"),
    ],
)
def test_nodes_that_make_no_group(run: Callable[..., Ran], nodes: tuple[str, ...], why: str) -> None:
    refused = run("init", *(part for node in nodes for part in ("--node", node)))
    assert refused.code == 1
    assert why in refused.err


def test_new_files_reach_the_folders_of_their_nodes(run: Callable[..., Ran], tmp_path: Path) -> None:
    run("init", *NODES)
    copies = {node: tmp_path / node / "certificates" for node in HOSTS}
    before = {node: contents(folder) for node, folder in copies.items()}
    assert run("renew", "n1").code == 0
    assert contents(copies["n0"]) == before["n0"]
    assert contents(copies["n1"])["n1.pem"] != before["n1"]["n1.pem"]
    assert run("add-authority").code == 0
    both = contents(copies["n0"])["ca.pem"]
    assert both.endswith(before["n0"]["ca.pem"])
    assert run("remove-old-authorities").code == 0
    assert both == contents(copies["n1"])["ca.pem"] + before["n0"]["ca.pem"]


def test_a_folder_without_certificates(run: Callable[..., Ran]) -> None:
    for command in ("renew", "add-authority", "remove-old-authorities"):
        refused = run(command)
        assert (refused.code, "there are no certificates in" in refused.err) == (1, True)
