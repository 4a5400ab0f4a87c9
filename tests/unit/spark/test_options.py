"""Option maps: read by type, refused by name."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from remoting.client.tls import ClientTls
from rocketmq_spark.errors import OptionError, RequestRefusedError
from rocketmq_spark.options import (
    TLS_OPTIONS,
    ConnectionOptions,
    OptionReader,
    job_connection,
    parse_duration_ms,
)

KNOWN = (
    *("namesrv", "requestTimeout", "retryTimeout", "accountFile", "count", "flag", "kind", "text"),
    *TLS_OPTIONS,
)


def reader(**options: str) -> OptionReader:
    return OptionReader(options, KNOWN, "the test")


def test_values_are_read_by_type() -> None:
    given = reader(COUNT=" 5 ", Flag="TRUE", kind="Two", text=" a b ")
    assert given.integer("count") == 5
    assert given.boolean("flag", False) is True
    assert given.choice("kind", ("one", "two"), "one") == "two"
    assert given.text("text") == "a b"
    assert given.has("Text")


def test_defaults() -> None:
    given = reader(text="  ")
    assert given.integer("count") is None
    assert given.integer("count", 3) == 3
    assert given.boolean("flag", True) is True
    assert given.choice("kind", ("one",), "one") == "one"
    assert given.text("text", "x") == "x"
    assert given.duration_ms("requestTimeout", 5) == 5


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("250", 250), ("250ms", 250), ("1.5s", 1_500), ("2 m", 120_000), ("1H", 3_600_000), ("1d", 86_400_000)],
)
def test_times(text: str, expected_ms: int) -> None:
    assert parse_duration_ms("x", text) == expected_ms


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-1s", "1e3"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="option delay is"):
        parse_duration_ms("delay", text)


def test_connection() -> None:
    given = reader(namesrv="a:1;b:2", requestTimeout="2s", retryTimeout="1m")
    assert given.connection() == ConnectionOptions("a:1;b:2", 2.0, 60.0)
    with pytest.raises(OptionError, match="the test needs the option namesrv"):
        reader().connection()


def test_tls_of_a_connection() -> None:
    assert reader(namesrv="a:1").connection().tls is None
    assert reader(namesrv="a:1", tls="true").connection().tls == ClientTls()
    files = {"tlsAuthorities": "ca.pem", "tlsCertificate": "c.pem", "tlsKey": "c.key"}
    given = reader(namesrv="a:1", tlsCheckHostName="false", **files).connection()
    assert given.tls == ClientTls(Path("ca.pem"), Path("c.pem"), Path("c.key"), checks_host_name=False)
    assert pickle.loads(pickle.dumps(given)) == given
    assert reader(namesrv="a:1", tls="false", **files).connection().tls is None
    with pytest.raises(OptionError, match=r"ca\.pem cannot be read"):
        reader(namesrv="a:1", tlsAuthorities="none/ca.pem").connection().cluster()


def test_a_job_takes_tls_from_its_environment() -> None:
    assert job_connection("a:1", {}) == {"namesrv": "a:1"}
    environment = {"LEDGERMQ_TLS_AUTHORITIES": "/ca.pem", "LEDGERMQ_TLS_CHECK_HOST_NAME": "false"}
    given = reader(**job_connection("a:1", environment)).connection()
    assert given.tls == ClientTls(Path("/ca.pem"), checks_host_name=False)
    with pytest.raises(OptionError, match="LEDGERMQ_TLS is"):
        job_connection("a:1", {"LEDGERMQ_TLS": "1"})


def test_account_of_a_connection(tmp_path: Path) -> None:
    assert reader(namesrv="a:1").connection().account_file is None
    file = tmp_path / "account.toml"
    file.write_text('access_key = "alice"\nsecret_key = "alice-secret"\n', encoding="utf-8")
    file.chmod(0o600)
    given = reader(**job_connection("a:1", {"LEDGERMQ_ACL_FILE": str(file)})).connection()
    assert given.account_file == str(file)
    given.cluster().close()
    assert "alice" not in repr(given)
    with pytest.raises(OptionError, match=r"option accountFile: .* cannot be read"):
        reader(namesrv="a:1", accountFile="none.toml").connection().cluster()
    with pytest.raises(OptionError, match="name the account by LEDGERMQ_ACL_FILE"):
        job_connection("a:1", {"LEDGERMQ_ACCESS_KEY": "alice"})


def test_every_unknown_option_is_named() -> None:
    with pytest.raises(OptionError) as caught:
        reader(cuont="5", namesvr="x", zzz="1")
    text = str(caught.value)
    assert "has no option cuont; nearest: count" in text
    assert "has no option namesvr; nearest: namesrv" in text
    assert "has no option zzz; known: accountFile, count, flag" in text


def test_options_of_elsewhere_have_a_hint() -> None:
    with pytest.raises(OptionError, match="option endingOffsets is for batch only"):
        OptionReader({"ENDINGOFFSETS": "x"}, KNOWN, "the test", {"endingOffsets": "is for batch only"})


def test_errors_cross_processes() -> None:
    error = pickle.loads(pickle.dumps(RequestRefusedError("a pull", 16, "no")))
    assert str(error) == "a pull was refused with code 16: no"
    assert (error.code, error.remark) == (16, "no")
