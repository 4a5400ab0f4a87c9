"""The Spark session of a job: embedded on this machine, or as `--master` or spark-submit says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketmq_spark.errors import JobError, SetupError, sentence_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMBEDDED_MASTER: Final = "local[*]"
JAVA_VERSION_MIN: Final = 17
JAVA_LIMIT_S: Final = 30.0
PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "fsspec", "jinja2", "matplotlib")
INSTALL: Final = "pip install 'ledgermq[spark]'"
INSTALL_JAVA: Final = (
    "(Debian and Ubuntu: apt install openjdk-17-jre-headless; elsewhere: https://adoptium.net)"
)
_LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_PANDAS_WARNING: Final = "PySpark does not yet fully support pandas"

_ALWAYS: Final = {
    "spark.python.authenticate.socketTimeout": "60s",  # a worker may take long to start on a busy machine
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_EMBEDDED: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.daemon.module": "rocketmq_spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
}
"""On this machine the workers run with this Python, which has our modules."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """`master` None: that of spark-submit, else `local[*]`. `conf` overrides all settings made here."""

    app_name: str
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


def open_session(options: SessionOptions) -> SparkSession:
    """A session whose driver listens on 127.0.0.1 when it runs on this machine, with quiet logs.

    Raises: SetupError naming what is missing, JobError when Spark does not start.
    """
    require_packages(PACKAGES)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        require_java(os.environ)
    warnings.filterwarnings("ignore", _PANDAS_WARNING, FutureWarning)
    os.environ.setdefault("PYTHONWARNINGS", f"ignore:{_PANDAS_WARNING}:FutureWarning")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(options.app_name)
    master = options.master if is_submitted else options.master or EMBEDDED_MASTER
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            # Workers must be this Python: it has the packages, and one of another version is refused.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in session_conf(options, master).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise JobError(f"Spark does not start: {sentence_of(error)}") from error


def session_conf(options: SessionOptions, master: str | None) -> dict[str, str]:
    """The settings of the session; `master` None: spark-submit has set one."""
    conf = dict(_ALWAYS)
    if master is not None and master.startswith("local"):
        conf |= _EMBEDDED
        conf[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}"
    given = dict(options.conf)
    if _JAVA_OPTIONS in given and _JAVA_OPTIONS in conf:
        given[_JAVA_OPTIONS] = f"{conf[_JAVA_OPTIONS]} {given[_JAVA_OPTIONS]}"
    return conf | given


def parse_conf(settings: Sequence[str]) -> dict[str, str]:
    """`--conf K=V` by name. Raises: JobError naming every setting that is not K=V."""
    wrong = [text for text in settings if not text.partition("=")[0] or "=" not in text]
    if wrong:
        raise JobError(f"--conf needs KEY=VALUE; these are not: {', '.join(wrong)}.")
    return {key.strip(): value for key, _, value in (text.partition("=") for text in settings)}


def require_packages(names: Sequence[str]) -> None:
    """Raises: SetupError naming the packages that are missing."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise SetupError(f"the Spark jobs need {', '.join(missing)}. Install what they need: {INSTALL}")


def require_java(environ: Mapping[str, str]) -> None:
    """Raises: SetupError when no Java runtime of JAVA_VERSION_MIN or newer can be started."""
    program = java_program(environ)
    if program is None:
        raise SetupError(
            f"Spark needs a Java runtime of {JAVA_VERSION_MIN} or newer, and there is no java on the PATH "
            f"and no JAVA_HOME. Install one {INSTALL_JAVA}."
        )
    version = java_version(_java_words(program))
    if version is None:
        raise SetupError(f"{program} does not print its version. Install a Java runtime {INSTALL_JAVA}.")
    if version < JAVA_VERSION_MIN:
        raise SetupError(
            f"{program} is Java {version}; Spark needs {JAVA_VERSION_MIN} or newer. Install one "
            f"{INSTALL_JAVA} and let JAVA_HOME name its folder."
        )


def java_program(environ: Mapping[str, str]) -> str | None:
    """The `java` that Spark would start: JAVA_HOME's, else the first on the PATH."""
    home = environ.get("JAVA_HOME")
    if home:
        return str(Path(home, "bin", "java"))
    return shutil.which("java", path=environ.get("PATH"))


def java_version(words: str) -> int | None:
    """The major version in the words of `java -version`: 17 of "17.0.15", 8 of "1.8.0_292"."""
    found = _VERSION.search(words)
    return int(found[1]) if found else None


def _java_words(program: str) -> str:
    try:
        asked = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stderr + asked.stdout
