"""What RocketMQ's proxy demands of names, messages and times before a broker is asked (GrpcValidator,
SendMessageActivity). Its limits are the defaults of ProxyConfig 5.5.0.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from broker.state.groups import group_name_error
from broker.state.topics import SYSTEM_PREFIX, SYSTEM_TOPICS
from grpc_endpoint.messaging_pb2 import Code, Resource
from grpc_endpoint.properties import SYSTEM_PROPERTIES
from grpc_endpoint.status import StatusError
from remoting.topic_names import topic_name_error

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
USER_PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16 * 1024
MESSAGE_GROUP_BYTES_MAX: Final = 64
LITE_TOPIC_BYTES_MAX: Final = 64
INVISIBLE_MIN_MS: Final = 10_000
"""Of a receive; a change of the invisible time may be shorter."""
INVISIBLE_MAX_MS: Final = 12 * 3_600_000
DELAY_MAX_MS: Final = 24 * 3_600_000
RECOVERY_MAX_S: Final = 3_600
NAMES_KEPT: Final = 1_024
"""Names of topics, and of groups, that were found good."""
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
_LITE_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]+")


def topic_of(resource: Resource) -> str:
    """A topic's name; its namespace is not looked at, as RocketMQ's proxy does not."""
    return _checked_topic(resource.name)


@lru_cache(NAMES_KEPT)
def _checked_topic(name: str) -> str:
    error = topic_name_error(name)
    if error is not None:
        raise StatusError(Code.ILLEGAL_TOPIC, error)
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX):
        raise StatusError(Code.ILLEGAL_TOPIC, "cannot access system topic")
    return name


def group_of(resource: Resource) -> str:
    return _checked_group(resource.name)


@lru_cache(NAMES_KEPT)
def _checked_group(name: str) -> str:
    error = group_name_error(name)
    if error is not None:
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, error)
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise StatusError(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return name


def has_control_character(text: str) -> bool:
    return not text.isprintable() and any(unicodedata.category(each) == "Cc" for each in text)


def check_body(body: bytes) -> None:
    if not body:
        raise StatusError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > BODY_BYTES_MAX:
        raise StatusError(Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {BODY_BYTES_MAX}")


def check_tag(tag: str) -> None:
    _check_text(tag, "tag", Code.ILLEGAL_MESSAGE_TAG)
    if "|" in tag:
        raise StatusError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")


def check_key(key: str) -> None:
    _check_text(key, "key", Code.ILLEGAL_MESSAGE_KEY)


def check_message_group(group: str) -> None:
    _check_text(group, "message group", Code.ILLEGAL_MESSAGE_GROUP)
    if len(group.encode()) >= MESSAGE_GROUP_BYTES_MAX:
        message = f"message group exceed the max size {MESSAGE_GROUP_BYTES_MAX}"
        raise StatusError(Code.ILLEGAL_MESSAGE_GROUP, message)


def check_lite_topic(name: str) -> None:
    if not name.strip():
        message = "lite topic cannot be the char sequence of whitespace"
        raise StatusError(Code.ILLEGAL_LITE_TOPIC, message)
    if len(name.encode()) > LITE_TOPIC_BYTES_MAX:
        message = f"lite topic exceed the max size {LITE_TOPIC_BYTES_MAX}"
        raise StatusError(Code.ILLEGAL_LITE_TOPIC, message)
    if _LITE_TOPIC.fullmatch(name) is None:
        message = "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)"
        raise StatusError(Code.ILLEGAL_LITE_TOPIC, message)


def _check_text(text: str, what: str, code: Code) -> None:
    if text and not text.strip():
        raise StatusError(code, f"{what} cannot be the char sequence of whitespace")
    if has_control_character(text):
        raise StatusError(code, f"{what} cannot contain control character")


def check_properties(properties: Mapping[str, str], tag: str, keys: Iterable[str]) -> None:
    """The user's own properties, and how much they take together with tag and keys."""
    if len(properties) > USER_PROPERTIES_MAX:
        message = f"too many user properties, max is {USER_PROPERTIES_MAX}"
        raise StatusError(Code.MESSAGE_PROPERTIES_TOO_LARGE, message)
    size = len(tag.encode()) + sum(len(key.encode()) for key in keys)
    for name, value in properties.items():
        if name in SYSTEM_PROPERTIES:
            raise StatusError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        for part, text in (("key", name), ("value", value)):
            if has_control_character(text):
                message = f"the {part} of property cannot contain control character"
                raise StatusError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, message)
        size += len(name.encode()) + len(value.encode())
    if size > PROPERTIES_BYTES_MAX:
        message = f"the total size of user property is too large, max is {PROPERTIES_BYTES_MAX}"
        raise StatusError(Code.MESSAGE_PROPERTIES_TOO_LARGE, message)


def check_invisible(invisible_ms: int, least_ms: int = 0) -> None:
    if invisible_ms < least_ms:
        message = f"the invisibleTime is too small. min is {least_ms}"
        raise StatusError(Code.ILLEGAL_INVISIBLE_TIME, message)
    if invisible_ms > INVISIBLE_MAX_MS:
        message = f"the invisibleTime is too large. max is {INVISIBLE_MAX_MS}"
        raise StatusError(Code.ILLEGAL_INVISIBLE_TIME, message)


def check_delivery(delivery_ms: int, now_ms: int) -> None:
    if delivery_ms - now_ms > DELAY_MAX_MS:
        message = f"the max delay time of message is too large, max is {DELAY_MAX_MS}"
        raise StatusError(Code.ILLEGAL_DELIVERY_TIME, message)


def check_recovery(recovery_s: int) -> None:
    if recovery_s > RECOVERY_MAX_S:
        message = f"the max transaction recovery time of message is too large, max is {RECOVERY_MAX_S}"
        raise StatusError(Code.BAD_REQUEST, message)
