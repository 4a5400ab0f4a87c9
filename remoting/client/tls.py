"""How clients speak TLS: settings, and the environment variables that hold them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sockets.tls import TlsCredentials, TlsFiles, TlsSettingsError

ENABLE_VARIABLE: Final = "LEDGERMQ_TLS"
AUTHORITIES_VARIABLE: Final = "LEDGERMQ_TLS_AUTHORITIES"
CERTIFICATE_VARIABLE: Final = "LEDGERMQ_TLS_CERT"
KEY_VARIABLE: Final = "LEDGERMQ_TLS_KEY"
HOST_NAME_VARIABLE: Final = "LEDGERMQ_TLS_CHECK_HOST_NAME"
_FILE_VARIABLES: Final = (AUTHORITIES_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE)
VARIABLES: Final = (ENABLE_VARIABLE, *_FILE_VARIABLES, HOST_NAME_VARIABLE)
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client speaks TLS. The server's certificate is always verified.

    authorities: that may have signed it; None: the system's.
    certificate, key: what the client shows to a server that asks; None: nothing.
    checks_host_name: the server's certificate must be for the name or IP address that is connected to.
    """

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    checks_host_name: bool = True

    def credentials(self) -> TlsCredentials:
        """Load the files. Raises TlsFilesError."""
        if self.key is not None and self.certificate is None:
            raise TlsSettingsError("a key for TLS is of no use without its certificate")
        files = TlsFiles(self.certificate, self.key, self.authorities)
        return TlsCredentials(files, "client", checks_host_name=self.checks_host_name)


def client_tls_from(environment: Mapping[str, str]) -> ClientTls | None:
    """What the environment says; None: plain text. Naming a file is enough to switch TLS on.

    Raises: TlsSettingsError.
    """
    authorities, certificate, key = (
        Path(text) if (text := environment.get(variable)) else None for variable in _FILE_VARIABLES
    )
    is_any_named = any(path is not None for path in (authorities, certificate, key))
    if not _switch(environment, ENABLE_VARIABLE, default=is_any_named):
        return None
    checks_host_name = _switch(environment, HOST_NAME_VARIABLE, default=True)
    return ClientTls(authorities, certificate, key, checks_host_name)


def _switch(environment: Mapping[str, str], variable: str, *, default: bool) -> bool:
    text = environment.get(variable)
    if not text:
        return default
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise TlsSettingsError(f"{variable} is {text[:40]!r}, not true or false.") from None
