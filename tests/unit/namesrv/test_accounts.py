"""The accounts of the name server: their file, and who signed a request."""

import logging
from pathlib import Path

import pytest

from namesrv.accounts import Accounts
from remoting.acl import AclError, Signer
from remoting.command import RemotingCommand
from tests.unit.namesrv.registrations import account, accounts_file

OLD, NEW = "an old secret", "a new secret"


def signed(key: str, secret: str) -> RemotingCommand:
    request = RemotingCommand(103, ext_fields={"brokerName": "broker-a"}, body=b"topics")
    Signer(key, secret).sign(request)
    return request


def test_the_account_that_signed_is_found(tmp_path: Path) -> None:
    path = accounts_file(tmp_path, account("broker-a", OLD), account("operator", NEW, "true"))
    accounts = Accounts(path)
    broker, operator = (
        accounts.signer_of(signed("broker-a", OLD)),
        accounts.signer_of(signed("operator", NEW)),
    )
    assert broker is not None
    assert operator is not None
    assert (broker.access_key, broker.is_admin) == ("broker-a", False)
    assert (operator.access_key, operator.is_admin) == ("operator", True)
    assert OLD not in repr(broker)


def test_other_secrets_keys_and_changed_requests_are_nobodys(tmp_path: Path) -> None:
    accounts = Accounts(accounts_file(tmp_path, account("broker-a", OLD)))
    changed = signed("broker-a", OLD)
    changed.ext_fields["brokerName"] = "broker-b"
    longer = signed("broker-a", OLD)
    longer.body += b"!"
    for request in (
        RemotingCommand(103),
        signed("broker-a", NEW),
        signed("broker-b", OLD),
        changed,
        longer,
        RemotingCommand(103, ext_fields={"AccessKey": "broker-a"}),
    ):
        assert accounts.signer_of(request) is None


def test_a_secret_is_replaced_while_both_are_in_force(tmp_path: Path) -> None:
    path = accounts_file(tmp_path, account("broker-a", OLD))
    accounts = Accounts(path)
    accounts_file(tmp_path, account("broker-a", OLD), account("broker-a", NEW))
    assert all(accounts.signer_of(signed("broker-a", secret)) for secret in (OLD, NEW))
    accounts_file(tmp_path, account("broker-a", NEW))
    assert accounts.signer_of(signed("broker-a", OLD)) is None
    assert accounts.signer_of(signed("broker-a", NEW))


def test_while_a_changed_file_cannot_be_used_the_accounts_of_before_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = accounts_file(tmp_path, account("broker-a", OLD))
    accounts = Accounts(path)
    accounts_file(tmp_path, account("broker-a", NEW), mode=0o640)
    with caplog.at_level(logging.INFO, "namesrv"):
        assert accounts.signer_of(signed("broker-a", OLD))
        assert accounts.signer_of(signed("broker-a", NEW)) is None
        assert caplog.text.count("stay in force") == 1, "it is said once"
        path.chmod(0o600)
        assert accounts.signer_of(signed("broker-a", NEW))
    path.unlink()
    assert accounts.signer_of(signed("broker-a", NEW))
    assert NEW not in caplog.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a TOML file with"),
        ("accounts = []", "is not a TOML file with"),
        ("accounts = 3", "is not a TOML file with"),
        (f"{account('a', 'a long secret')}[others]", "is not a TOML file with"),
        ("accounts = [3]", "account 1: it has access_key, secret_key"),
        ('[[accounts]]\naccess_key = "a"', "account 1: it has access_key, secret_key"),
        (account("a", "a long secret", "1"), "account 1: .*admin is true or false"),
        (account("", "a long secret"), "account 1: access_key and secret_key are texts"),
        (account("a", "short"), r"account 1 \(a\): a secret has at least 8 characters"),
        (
            "".join(account("a", f"a long secret {n}") for n in range(3)),
            "account 3: a has more than 2 secrets",
        ),
        (f"#{'x' * 70_000}", "is not a TOML file with"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_sentence_without_a_secret(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = accounts_file(tmp_path, text)
    with pytest.raises(AclError, match=problem) as caught:
        Accounts(path)
    assert "secret 2" not in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_file_that_others_can_read_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AclError, match=r"chmod 600 it"):
        Accounts(accounts_file(tmp_path, account("a", OLD), mode=0o604))
    with pytest.raises(AclError, match=r"none.toml \(--accounts\) cannot be read"):
        Accounts(tmp_path / "none.toml")
