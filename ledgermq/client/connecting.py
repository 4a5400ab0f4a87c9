"""What the environment says of connections to brokers and name servers: the account, and TLS."""

import os

from ledgermq.errors import WRONG_USAGE, UserError
from remoting.acl import AclError
from remoting.client.aio import RemotingClient, client_from
from remoting.client.tls import client_tls_from
from sockets.tls import TlsCredentials, TlsFilesError


def messaging_client() -> RemotingClient:
    """On the running loop; the caller closes it. Raises: UserError."""
    try:
        return client_from(os.environ)
    except (AclError, TlsFilesError) as error:
        raise UserError(str(error), WRONG_USAGE) from error


def tls_credentials() -> TlsCredentials | None:
    """For programs with sockets of their own; None: plain text. Raises: UserError."""
    try:
        tls = client_tls_from(os.environ)
        return None if tls is None else tls.credentials()
    except TlsFilesError as error:
        raise UserError(str(error), WRONG_USAGE) from error
