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
