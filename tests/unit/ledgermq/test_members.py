"""The certificates of a group's members: made, completed, renewed, and an authority replaced step by step."""

import datetime
import stat
from pathlib import Path

import pytest

from dledger.credentials import member_uri
from ledgermq import members
from ledgermq.certificates import KeyPair, issue, make_authority
from ledgermq.errors import UserError
from ledgermq.members import MemberFiles
from sockets.tls import PeerNames, TlsCredentials, TlsError, TlsFiles

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
