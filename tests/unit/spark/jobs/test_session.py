"""What a job needs before Spark starts, and the words when it is missing."""

from __future__ import annotations

import os
import stat
from importlib.util import find_spec
from pathlib import Path

import pytest

from rocketmq_spark.errors import JobError, SetupError
from rocketmq_spark.jobs import session
from rocketmq_spark.jobs.session import (
    SessionOptions,
    java_version,
    parse_conf,
    require_java,
    require_packages,
    session_conf,
)


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea"', 25),
        ("no java here", None),
    ],
)
def test_the_version_is_read(words: str, version: int | None) -> None:
    assert java_version(words) == version


def java_saying(folder: Path, words: str) -> Path:
    """A JAVA_HOME whose java says this."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def test_no_java_is_told_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"17 or newer, and there is no java .* apt install openjdk-17"):
        require_java({"PATH": str(tmp_path)})


def test_an_old_java_is_told_with_its_version(tmp_path: Path) -> None:
    home = java_saying(tmp_path, 'openjdk version "11.0.2"')
    with pytest.raises(SetupError, match=r"java is Java 11; Spark needs 17 or newer.* let JAVA_HOME"):
        require_java({"JAVA_HOME": str(home)})
    with pytest.raises(SetupError, match="does not print its version"):
        require_java({"JAVA_HOME": str(tmp_path / "nowhere")})


def test_a_java_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    home = java_saying(tmp_path, 'openjdk version "21.0.1"')
    require_java({"JAVA_HOME": str(home)})
    require_java({"PATH": f"{home / 'bin'}{os.pathsep}/bin:/usr/bin"})


def test_missing_packages_are_named() -> None:
    with pytest.raises(SetupError, match=r"need nosuch_a, nosuch_b\. .* pip install 'ledgermq\[spark\]'"):
        require_packages(("json", "nosuch_a", "nosuch_b"))


def test_a_missing_extra_is_told_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PACKAGES", ("nosuch_package",))
    with pytest.raises(SetupError, match="nosuch_package"):
        session.open_session(SessionOptions("test"))


def test_an_embedded_session_listens_on_this_machine_only() -> None:
    conf = session_conf(SessionOptions("test"), "local[*]")
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.ui.enabled"] == "false"


def test_workers_on_this_machine_are_forked_from_our_daemon_and_those_elsewhere_from_sparks() -> None:
    """Executors elsewhere may have no installed rocketmq_spark: a package that is shipped comes too late."""
    setting = "spark.python.daemon.module"
    assert find_spec(session_conf(SessionOptions("test"), "local[2]")[setting]) is not None
    for master in ("spark://master:7077", None):
        assert setting not in session_conf(SessionOptions("test"), master)


def test_a_session_elsewhere_is_not_bound_to_this_machine() -> None:
    for master in ("spark://master:7077", None):
        conf = session_conf(SessionOptions("test"), master)
        assert conf["spark.sql.session.timeZone"] == "UTC"
        assert not {"spark.driver.bindAddress", "spark.driver.host"} & set(conf)


def test_what_is_given_wins_and_java_options_are_joined() -> None:
    given = {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Xss2m"}
    conf = session_conf(SessionOptions("test", conf=given), "local[2]")
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file://")
    assert conf["spark.driver.extraJavaOptions"].endswith(" -Xss2m")


def test_settings_are_read_and_wrong_ones_named() -> None:
    assert parse_conf(["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}
    with pytest.raises(JobError, match="these are not: novalue, =x"):
        parse_conf(["a=b", "novalue", "=x"])
