"""Option maps as Spark passes them: text by case-insensitive name. Pure.

Every option that is not known is refused with the nearest known names: a mistyped one must not change what a
query reads.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketmq_spark.client.cluster import DEADLINE_S, TIMEOUT_S, Cluster
from rocketmq_spark.errors import OptionError

if TYPE_CHECKING:
    from remoting.acl import Signer
    from remoting.client.tls import ClientTls
    from sockets.tls import TlsCredentials

FILE_OPTIONS: Final = ("tlsAuthorities", "tlsCertificate", "tlsKey")
TLS_OPTIONS: Final = ("tls", *FILE_OPTIONS, "tlsCheckHostName")
CONNECTION_OPTIONS: Final = ("namesrv", "requestTimeout", "retryTimeout", "accountFile", *TLS_OPTIONS)
"""Options of every source and sink that talks to a cluster."""

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", re.IGNORECASE)
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NEAREST_MAX = 3


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach a cluster.

    namesrv: `host:port`, several separated by `;`.
    timeout_s: for one request. deadline_s: for a request with all its repetitions while there is no leader.
    tls: None for plain text; account_file: None for requests without a signature. Files are read where a
    connection is made.
    """

    namesrv: str
    timeout_s: float = TIMEOUT_S
    deadline_s: float = DEADLINE_S
    tls: "ClientTls | None" = None
    account_file: str | None = None

    def cluster(self) -> Cluster:
        """A new client; the caller closes it. Raises OptionError: a file cannot be used on this machine."""
        credentials, signer = self._credentials(), self._signer()
        return Cluster(self.namesrv, self.timeout_s, self.deadline_s, credentials, signer)

    def _signer(self) -> "Signer | None":
        if self.account_file is None:
            return None
        from remoting.acl import FILE_VARIABLE, AclError, signer_from

        try:
            return signer_from({FILE_VARIABLE: self.account_file})
        except AclError as error:
            raise OptionError(f"option accountFile: {error}") from None

    def _credentials(self) -> "TlsCredentials | None":
        if self.tls is None:
            return None
        from sockets.tls import TlsFilesError  # loads OpenSSL, which a task without TLS does not need

        try:
            return self.tls.credentials()
        except TlsFilesError as error:
            raise OptionError(str(error)) from None


def job_connection(namesrv: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The connection options of a job's queries: TLS and the account are those that the environment of the
    job names.

    Raises: OptionError.
    """
    from remoting.acl import FILE_VARIABLE, VARIABLES
    from remoting.client.tls import client_tls_from
    from sockets.tls import TlsFilesError

    file = environment.get(FILE_VARIABLE)
    if not file and any(map(environment.get, VARIABLES.values())):
        raise OptionError(f"name the account by {FILE_VARIABLE}: tasks do not have the environment of a job")
    account = {"accountFile": file} if file else {}
    try:
        tls = client_tls_from(environment)
    except TlsFilesError as error:
        raise OptionError(str(error)) from None
    if tls is None:
        return {"namesrv": namesrv, **account}
    files = zip(FILE_OPTIONS, (tls.authorities, tls.certificate, tls.key), strict=True)
    return {
        "namesrv": namesrv,
        **account,
        "tls": "true",
        "tlsCheckHostName": str(tls.checks_host_name).lower(),
        **{name: str(path) for name, path in files if path is not None},
    }


class OptionReader:
    """Reads one option map. Every getter names the option in its error."""

    def __init__(
        self,
        options: Mapping[str, str],
        known: Iterable[str],
        what: str,
        hints: Mapping[str, str] | None = None,
    ) -> None:
        """Refuse unknown options.

        known: the option names as documented. what: their format, for the message. hints: texts for
        names that are options elsewhere.

        Raises:
            OptionError: naming all unknown options, each with the nearest known ones.
        """
        self._values = {name.lower(): str(value) for name, value in options.items()}
        self._what = what
        names = {name.lower(): name for name in known}
        unknown = [name for name in options if name.lower() not in names]
        if unknown:
            notes = {name.lower(): f"option {name} {hint}" for name, hint in (hints or {}).items()}
            problems = (notes.get(name.lower()) or _unknown(name, names, what) for name in sorted(unknown))
            raise OptionError("; ".join(problems))

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str, default: str | None = None) -> str | None:
        """The value without white space around it; an empty one counts as absent."""
        return self._values.get(name.lower(), "").strip() or default

    def required(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise OptionError(f"{self._what} needs the option {name}")
        return value

    def integer(self, name: str, default: int | None = None, least: int = 0) -> int | None:
        """A whole number not below `least`."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            raise OptionError(f"option {name} is {value!r}, not a whole number") from None
        if number < least:
            raise OptionError(f"option {name} is {number}, must be at least {least}")
        return number

    def boolean(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"option {name} is {value!r}, must be true or false")
        return value.lower() == "true"

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of the choices, in lower case."""
        allowed = tuple(choices)
        value = self.text(name, default)
        assert value is not None
        if value.lower() not in allowed:
            raise OptionError(f"option {name} is {value!r}, must be one of {', '.join(allowed)}")
        return value.lower()

    def duration_ms(self, name: str, default: int) -> int:
        """`500ms`, `30s`, `15m`, `2h`, `1d`; a bare number is milliseconds."""
        value = self.text(name)
        return default if value is None else parse_duration_ms(name, value)

    def connection(self) -> ConnectionOptions:
        """The options of CONNECTION_OPTIONS."""
        return ConnectionOptions(
            self.required("namesrv"),
            self.duration_ms("requestTimeout", round(TIMEOUT_S * 1000)) / 1000,
            self.duration_ms("retryTimeout", round(DEADLINE_S * 1000)) / 1000,
            self._tls(),
            self.text("accountFile"),
        )

    def _tls(self) -> "ClientTls | None":
        """The values of TLS_OPTIONS; one file is enough to enable TLS."""
        authorities, certificate, key = (
            Path(text) if (text := self.text(name)) else None for name in FILE_OPTIONS
        )
        is_any_named = any(path is not None for path in (authorities, certificate, key))
        if not self.boolean("tls", default=is_any_named):
            return None
        from remoting.client.tls import ClientTls

        return ClientTls(authorities, certificate, key, self.boolean("tlsCheckHostName", default=True))


def parse_duration_ms(name: str, value: str) -> int:
    """Read a length of time. Raises OptionError naming the option."""
    match = _DURATION.fullmatch(value)
    if match is None:
        raise OptionError(f"option {name} is {value!r}, must be a time such as 500ms, 30s, 15m, 2h or 1d")
    return round(float(match[1]) * _UNIT_MS[(match[2] or "ms").lower()])


def _unknown(name: str, known: Mapping[str, str], what: str) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=_NEAREST_MAX)
    if near:
        return f"{what} has no option {name}; nearest: {', '.join(known[key] for key in near)}"
    return f"{what} has no option {name}; known: {', '.join(sorted(known.values(), key=str.lower))}"
