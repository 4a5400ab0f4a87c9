"""remoting.acl: signatures as RocketMQ's Java makes them, and where the account comes from."""

import base64
import hmac
from pathlib import Path

import pytest

from remoting.acl import AclError, Signer, signature_of, signer_from
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.router import Router
from remoting.server import RemotingServer

KEYS = {"LEDGERMQ_ACCESS_KEY": "RocketMQ", "LEDGERMQ_SECRET_KEY": "1234567890"}
SIGNER = Signer("RocketMQ", "1234567890")


def request() -> RemotingCommand:
    fields = {"topic": "Orders", "b": "2", "a": "1", "B": "0"}
    return RemotingCommand(RequestCode.SEND_MESSAGE, ext_fields=fields, body="Grüße".encode())


def test_signature_is_that_of_java() -> None:
    """HMAC-SHA1 by `openssl dgst -sha1 -hmac 1234567890 -binary | base64` of `RocketMQ` (AccessKey), `0` (B),
    `1` (a), `2` (b), `Orders` and the body: the order of a Java TreeMap, where capitals come first.
    """
    command = request()
    SIGNER.sign(command)
    assert command.ext_fields["AccessKey"] == "RocketMQ"
    assert command.ext_fields["Signature"] == "AcqEAUVCTvbNnK7X2dpitZ0WS4Q="
    assert "SecurityToken" not in command.ext_fields


def test_signature_of_rocketmqs_own_test_is_the_same() -> None:
    """AuthenticationEvaluatorTest signs `test` with the password `test`."""
    command = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields={"AccessKey": "test"})
    assert signature_of(command, b"test") == b"DJRRXBXlCVuKh6ULoN87847QX+Y="


def test_large_bodies_are_signed_without_a_copy() -> None:
    command = RemotingCommand(RequestCode.SEND_MESSAGE, ext_fields={"a": "1"}, body=b"x" * 100_000)
    expected = hmac.digest(b"secret", b"1" + command.body, "sha1")
    assert signature_of(command, b"secret") == base64.b64encode(expected)


def test_what_brokers_do_not_check_is_not_signed() -> None:
    """RocketMQ 5 leaves the field out for clients up to 4.9.3 (399) only."""
    plain, marked = request(), request()
    marked.ext_fields["_UNIQUE_KEY_QUERY"] = "true"
    for command in (plain, marked):
        SIGNER.sign(command)
    assert marked.ext_fields["Signature"] == plain.ext_fields["Signature"]
    assert (marked.ext_fields["_UNIQUE_KEY_QUERY"], marked.version, plain.version) == ("true", 399, 409)


def test_token_is_signed_too_and_a_second_signing_replaces_the_first() -> None:
    command = request()
    Signer("RocketMQ", "1234567890", "token").sign(command)
    first = dict(command.ext_fields)
    assert (first["SecurityToken"], first["Signature"]) == ("token", "OA1geSDfyHXOgRqU3rFo0+Aec1A=")
    Signer("RocketMQ", "1234567890", "token").sign(command)
    assert command.ext_fields == first


def test_secrets_stand_in_no_text() -> None:
    assert str(Signer("RocketMQ", "1234567890", "a-token")) == "Signer(access_key='RocketMQ')"
    command = request()
    Signer("RocketMQ", "1234567890", "a-token").sign(command)
    assert "a-token" not in repr(command)
    assert command.ext_fields["Signature"] not in repr(command)


async def test_client_signs_each_request() -> None:
    got: list[dict[str, str]] = []

    def answer(command: RemotingCommand, connection: Connection) -> RemotingCommand:
        got.append(dict(command.ext_fields))
        return RemotingCommand(0, opaque=command.opaque, flag=1)

    router = Router()
    router.register(RequestCode.SEND_MESSAGE, answer)
    server = RemotingServer(router, "127.0.0.1", 0)
    await server.start()
    client = RemotingClient(signer=SIGNER)
    try:
        await client.invoke(f"127.0.0.1:{server.port}", request())
        await client.invoke(f"127.0.0.1:{server.port}", request())
    finally:
        await client.close()
        await server.stop()
    expected = request()
    SIGNER.sign(expected)
    assert got == [expected.ext_fields] * 2


def test_account_of_the_environment() -> None:
    assert signer_from({}) is None
    assert signer_from({"LEDGERMQ_ACCESS_KEY": "", "LEDGERMQ_ACL_FILE": ""}) is None
    assert signer_from(KEYS) == SIGNER
    assert signer_from(KEYS | {"LEDGERMQ_SECURITY_TOKEN": "t"}) == Signer("RocketMQ", "1234567890", "t")
    with pytest.raises(AclError, match="the environment has no LEDGERMQ_SECRET_KEY"):
        signer_from({"LEDGERMQ_ACCESS_KEY": "RocketMQ"})


def test_account_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "account.toml"
    path.write_text('access_key = "RocketMQ"\nsecret_key = "1234567890"\n')
    path.chmod(0o600)
    assert signer_from({"LEDGERMQ_ACL_FILE": str(path)}) == SIGNER
    path.chmod(0o640)
    with pytest.raises(AclError, match="readable by other users: chmod 600 it"):
        signer_from({"LEDGERMQ_ACL_FILE": str(path)})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('access_key = "s3cret"', "has no secret_key"),
        (
            'secret_key = "s3cret',
            "is not a TOML file with access_key, secret_key, security_token and",
        ),
        ('access_key = "a"\nsecretkey = "s3cret"', "is not a TOML file with"),
        ('access_key = "a"\nsecret_key = 5', "has a value that is not a string"),
        ("x" * 70_000, "is not a TOML file with"),
    ],
)
def test_file_that_cannot_be_used_is_a_sentence_without_the_secret(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "account.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(AclError, match=problem) as caught:
        signer_from({"LEDGERMQ_ACL_FILE": str(path)})
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AclError, match="cannot be read: No such file"):
        signer_from({"LEDGERMQ_ACL_FILE": str(tmp_path / "none.toml")})
