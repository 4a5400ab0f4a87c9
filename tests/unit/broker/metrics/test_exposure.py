"""What a node reports of its open ports, its certificates and the modes of its files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.config import load_config
from broker.monitoring.exposure import CHECK_INTERVAL_MS, PATHS_MAX, Exposure, readable_below
from sockets.tls import TlsFilesError, certificate_ends_ms
from tests.support.certificates import TlsPlace

DAY_MS = 86_400_000


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that every user can enter; pytest makes its own for one user only."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o001:
            break
        folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def exposure(folder: Path, *settings: str, text: str = "", now_ms: list[int] | None = None) -> Exposure:
    file = folder / "broker.toml"
    if not file.exists():
        file.write_text(text)
    config = load_config(file, (f"storePathRootDir={folder / 'store'}", *settings))
    return Exposure(config, lambda: (now_ms or [0])[0])


def test_ports_are_reported_as_they_are_protected(tmp_path: Path) -> None:
    TlsPlace(tmp_path)
    closed = exposure(tmp_path).figures()
    assert (closed["clientBindAddress"], closed["clientTlsMode"], closed["accessControl"]) == (
        "127.0.0.1",
        "disabled",
        "off",
    )
    assert closed["metricsBindAddress"] == ""
    keys = (f"tlsCertPath={tmp_path / 'server.pem'}", f"tlsKeyPath={tmp_path / 'server.key'}")
    wide = exposure(tmp_path, "metricsPort=9100", "metricsAddress=0.0.0.0", "aclEnable=true", *keys).figures()
    assert wide["metricsBindAddress"] == "0.0.0.0:9100"
    assert (wide["clientTlsMode"], wide["accessControl"]) == ("permissive", "accounts")


def test_the_end_of_each_certificate_is_reported(tmp_path: Path) -> None:
    place = TlsPlace(tmp_path)
    files = place.files("server")
    settings = [
        f"tlsCertPath={files.certificate}",
        f"tlsKeyPath={files.key}",
        f"tlsTrustCertPath={files.authorities}",
    ]
    figures = exposure(tmp_path, *settings).figures()
    now_ms = time.time_ns() // 1_000_000
    own = int(figures["certificateEndsMs.tlsCertPath"]) - now_ms
    authority = int(figures["certificateEndsMs.tlsTrustCertPath"]) - now_ms
    assert 820 * DAY_MS < own < 826 * DAY_MS
    assert 3640 * DAY_MS < authority < 3651 * DAY_MS


def test_the_first_end_of_a_chain_counts_and_the_last_of_authorities(tmp_path: Path) -> None:
    TlsPlace(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "ca.pem").read_bytes() + (tmp_path / "server.pem").read_bytes())
    ends_ms = certificate_ends_ms(both)
    settings = (f"tlsCertPath={both}", f"tlsKeyPath={tmp_path / 'ca.key'}", f"tlsTrustCertPath={both}")
    figures = exposure(tmp_path, *settings).figures()
    assert figures["certificateEndsMs.tlsCertPath"] == str(min(ends_ms))
    assert figures["certificateEndsMs.tlsTrustCertPath"] == str(max(ends_ms))


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    with pytest.raises(TlsFilesError, match=r"absent\.pem has no certificates"):
        certificate_ends_ms(tmp_path / "absent.pem")


def test_files_that_every_user_can_read_are_named(open_folder: Path) -> None:
    store = open_folder / "store"
    (store / "data").mkdir(parents=True)
    for folder in (store, store / "data"):
        folder.chmod(0o755)
    for name, mode in (("data/0", 0o644), ("currterm", 0o600)):
        (store / name).write_bytes(b"x")
        (store / name).chmod(mode)
    found = exposure(open_folder)
    assert found.figures()["readableByOthers"] == str(store / "data/0")
    (store / "data").chmod(0o700)
    assert list(readable_below(store)) == []


def test_a_configuration_is_named_only_with_a_password_in_it(open_folder: Path) -> None:
    config = open_folder / "broker.toml"
    config.write_text("fileReservedTime = 24\n")
    config.chmod(0o644)
    assert exposure(open_folder).figures()["readableByOthers"] == ""
    config.write_text("""initAuthenticationUser = '{"username": "root", "password": "s3cret-word"}'\n""")
    assert exposure(open_folder).figures()["readableByOthers"] == str(config)
    config.chmod(0o640)
    assert exposure(open_folder).figures()["readableByOthers"] == ""


def test_files_are_looked_at_once_a_minute_and_only_some_are_named(open_folder: Path) -> None:
    now_ms = [5]
    found = exposure(open_folder, now_ms=now_ms)
    assert found.figures()["readableByOthers"] == ""
    store = open_folder / "store"
    store.mkdir()
    store.chmod(0o755)  # whatever the umask is
    for number in range(PATHS_MAX + 2):
        (store / str(number)).write_bytes(b"x")
        (store / str(number)).chmod(0o644)
    assert found.figures()["readableByOthers"] == ""
    now_ms[0] += CHECK_INTERVAL_MS
    assert found.figures()["readableByOthers"].count(str(store)) == PATHS_MAX
