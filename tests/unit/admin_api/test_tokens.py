"""Where tokens come from, and what is refused of them."""

import hashlib
from pathlib import Path

import pytest

from admin_api.security.masking import MASK, masked
from admin_api.security.policy import (
    ENVIRONMENT_KEY,
    PolicyError,
    Role,
    Tokens,
    TokensError,
    host_name,
    load_tokens,
    policy_for,
)
from admin_api.security.rates import RateLimit

PLAIN = "a-long-random-token-of-ours"
HASHED = f"sha256:{hashlib.sha256(b'another-long-random-token').hexdigest()}"


def write(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def rows(*rows: tuple[str, str, str]) -> str:
    return "\n".join(
        f'[[tokens]]\nname = "{name}"\nrole = "{role}"\ntoken = "{token}"\n' for name, role, token in rows
    )


def test_plain_and_hashed_tokens_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, rows(("ops", "operate", PLAIN), ("grafana", "read", HASHED)))
    tokens = load_tokens(path, {ENVIRONMENT_KEY: "else:admin:never-looked-at-here"})
    found = tokens.find(PLAIN)
    assert found is not None
    assert (found.name, found.role, tokens.warnings) == ("ops", Role.OPERATE, ())
    found = tokens.find("another-long-random-token")
    assert found is not None
    assert (found.name, found.role) == ("grafana", Role.READ)
    for wrong in ("", PLAIN[:-1], PLAIN + "x", HASHED, "x" * 100_000, "ü"):
        assert tokens.find(wrong) is None


def test_tokens_of_the_environment() -> None:
    tokens = load_tokens(None, {ENVIRONMENT_KEY: f"ops:admin:{PLAIN}, grafana:read:{HASHED},"})
    assert [(token.name, token.role) for token in tokens.known] == [
        ("ops", Role.ADMIN),
        ("grafana", Role.READ),
    ]
    assert load_tokens(None, {}) == Tokens()


def test_plain_tokens_that_others_can_read_are_a_warning(tmp_path: Path) -> None:
    tokens = load_tokens(write(tmp_path, rows(("ops", "read", PLAIN)), 0o644), {})
    assert "chmod 600" in tokens.warnings[0]
    assert load_tokens(write(tmp_path, rows(("ops", "read", HASHED)), 0o644), {}).warnings == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no"),
        ("tokens = 5", "has no"),
        (f'[[tokens]]\ntoken = "{PLAIN}" {PLAIN}', "is no TOML file"),
        (f'[[tokens]]\nname = "a"\ntoken = "{PLAIN}"\n', "needs name, role and token"),
        (rows(("a", "root", PLAIN)), "the role is one of read, operate, admin"),
        (rows(("a", "read", "short-secret")), "16 to 512 characters"),
        (rows(("a", "read", "sha256:short-secret")), "64 hexadecimal digits"),
        (rows(("", "read", PLAIN)), "1 to 64 printable characters"),
        (rows(("a", "read", PLAIN), ("a", "read", HASHED)), "a name occurs twice"),
        (rows(("a", "read", PLAIN), ("b", "admin", PLAIN)), "a token occurs twice"),
    ],
)
def test_what_is_no_list_of_tokens_is_said_without_showing_one(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TokensError, match=said) as caught:
        load_tokens(write(tmp_path, text), {})
    assert PLAIN not in str(caught.value)
    assert "short-secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TokensError, match="No such file"):
        load_tokens(tmp_path / "none.toml", {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "broker.example"])
def test_strangers_are_not_served_without_tokens(host: str) -> None:
    with pytest.raises(PolicyError, match="there are no tokens"):
        policy_for(host, Tokens())
    assert not policy_for(host, load_tokens(None, {ENVIRONMENT_KEY: f"a:read:{PLAIN}"})).is_open


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machine_is_served_without_tokens(host: str) -> None:
    assert policy_for(host, Tokens()).is_open


def test_names_it_may_be_called_by() -> None:
    tokens = load_tokens(None, {ENVIRONMENT_KEY: f"a:read:{PLAIN}"})
    one = policy_for("192.0.2.7", tokens, ["Admin.example:8080"])
    called = ["192.0.2.7:8080", "localhost", "[::1]:80", "ADMIN.example", "192.0.2.8", "evil.example", ""]
    assert [one.is_called_by(host) for host in called] == [True, True, True, True, False, False, False]
    every = policy_for("0.0.0.0", tokens)
    assert [every.is_called_by(host) for host in called] == [True, True, True, False, True, False, False]


@pytest.mark.parametrize(
    ("host", "name"),
    [("A:1", "a"), ("[::1]:8080", "::1"), ("::1", "::1"), ("[::1", "[::1"), (":", ""), ("a:b:c", "a:b:c")],
)
def test_host_name(host: str, name: str) -> None:
    assert host_name(host) == name


def test_a_bucket_fills_again_and_belongs_to_one_client() -> None:
    now_s = [0.0]
    limit = RateLimit(2, 0.5, clients_max=2, now_s=lambda: now_s[0])
    assert [limit.acquire("a") for _ in range(3)] == [0.0, 0.0, 2.0]
    assert (limit.acquire("b"), limit.wait_s("a")) == (0.0, 2.0)
    now_s[0] = 2.0
    assert [limit.acquire("a"), limit.acquire("a")] == [0.0, 2.0]
    now_s[0] = 1_000.0
    assert [limit.acquire("a") for _ in range(3)] == [0.0, 0.0, 2.0]
    limit.acquire("b")
    limit.acquire("c")
    assert limit.acquire("a") == 0.0


@pytest.mark.parametrize("key", ["adminPassword", "SECRET_KEY", "accessKey", "authToken", "ssl.private-key"])
def test_secret_values_are_masked(key: str) -> None:
    assert [masked(key, value) for value in ("x", "", None)] == [MASK, "", None]


def test_other_values_are_shown() -> None:
    assert masked("brokerName", "broker-a") == "broker-a"
