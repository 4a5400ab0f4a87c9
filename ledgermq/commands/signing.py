"""The client of the Remoting protocol, which signs where the environment names an account."""

import os

from ledgermq.errors import WRONG_USAGE, UserError
from remoting.acl import AclError, signer_from
from remoting.client.aio import RemotingClient


def signing_client() -> RemotingClient:
    """On the running loop; the caller closes it. Raises: UserError."""
    try:
        return RemotingClient(signer=signer_from(os.environ))
    except AclError as error:
        raise UserError(str(error), WRONG_USAGE) from error
