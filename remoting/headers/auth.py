"""Typed headers of requests about users and access control lists (RocketMQ 5.3, codes 3001 to 3010). Pure.

The bodies are JSON: a user is {"username", "password", "userType", "userStatus"}, the rights of one are
{"subject", "policies": [{"policyType", "entries": [{"resource", "actions", "sourceIps", "decision"}]}]}.
"""

from remoting.headers.fields import RequestHeader, request_header


@request_header
class UserRequestHeader(RequestHeader):
    """Codes 3001 to 3004: create, update, delete and show one user."""

    username: str = ""


@request_header
class ListUsersRequestHeader(RequestHeader):
    """Code 3005: the users whose name contains the filter."""

    filter: str = ""


@request_header
class SubjectRequestHeader(RequestHeader):
    """Codes 3006, 3007 and 3009: a subject is `User:` and a name."""

    subject: str = ""


@request_header
class DeleteAclRequestHeader(RequestHeader):
    """Code 3008: the rights of one resource; without a resource all."""

    subject: str = ""
    policy_type: str = ""
    resource: str = ""


@request_header
class ListAclsRequestHeader(RequestHeader):
    """Code 3010: the subjects and resources that contain the filters."""

    subject_filter: str = ""
    resource_filter: str = ""


@request_header
class PlainAccountRequestHeader(RequestHeader):
    """Code 50 of RocketMQ 4.9: an account of plain_acl.yml; permissions are `NAME=PUB|SUB`, separated by
    commas; an empty list takes away what the account has.
    """

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: str | None = None
    group_perms: str | None = None


@request_header
class AccessKeyRequestHeader(RequestHeader):
    """Code 51 of RocketMQ 4.9."""

    access_key: str


@request_header
class WhiteAddressesRequestHeader(RequestHeader):
    """Code 53 of RocketMQ 4.9: addresses, separated by commas."""

    global_white_addrs: str
    acl_file_full_path: str = ""
