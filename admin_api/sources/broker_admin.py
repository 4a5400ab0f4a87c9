"""Requests to one broker about itself and its group: figures (28), configuration (25, 26), clean-up (306,
316, 329), leader transfer (65002), members (65008).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from admin_api.gateway import AskError, Gateway
from admin_api.sources.bodies import read_json, table_of
from broker.admin.types import MemberChange, MemberPlanView
from remoting.codes import RequestCode, ResponseCode
from remoting.properties_text import PropertiesTextError, format_properties_text, parse_properties_text

FIGURES_MAX: Final = 2_000
_SIZE: Final = re.compile(r"([\d.]+) ?([KMGTP]i)?B?")
_POWER: Final = {"": 0, "Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5}


@dataclass(frozen=True, slots=True)
class Runtime:
    """The table, and its texts as numbers. None: missing, or no number."""

    table: Mapping[str, str]

    def text(self, *keys: str) -> str | None:
        """The first of these keys that is present: releases spell some of them differently."""
        return next((self.table[key] for key in keys if self.table.get(key)), None)

    def integer(self, key: str) -> int | None:
        """A count, a position, or a time in ms; -1 is RocketMQ's unknown."""
        text = self.table.get(key, "").strip()
        is_number = text.isascii() and text.isdigit() and len(text) <= 19
        return int(text) if is_number else None

    def rate(self, *keys: str) -> float | None:
        """The first of RocketMQ's three rates (the last 10 s), in messages a second."""
        return _number((self.text(*keys) or "").split(" ")[0])

    def ratio(self, key: str) -> float | None:
        """From 0 to 1; a negative one is RocketMQ's unknown."""
        number = _number(self.table.get(key, ""))
        return number if number is not None and 0 <= number <= 1 else None

    def since(self, now_key: str, morning_key: str) -> int | None:
        """A total now less what it was this morning."""
        now, morning = self.integer(now_key), self.integer(morning_key)
        return None if now is None or morning is None or morning > now else now - morning

    def capacity(self) -> tuple[int | None, int | None]:
        """Bytes of the log's disk, and free ones: exact of LedgerMQ, rounded by others."""
        total, free = self.integer("diskTotalBytes"), self.integer("diskFreeBytes")
        if total is not None and free is not None:
            return total, free
        sizes = dict(
            part.strip().split(" : ", 1)
            for part in self.table.get("commitLogDirCapacity", "").rstrip(".").split(",")
            if " : " in part
        )
        return _size(sizes.get("Total", "")), _size(sizes.get("Free", ""))


class RuntimeSource:
    """Asks one broker."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def read(self, address: str) -> Runtime:
        """28. Raises: AskError."""
        answer = await self._gateway.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        value = read_json(address, answer.body, "figures")
        table = table_of(address, value, "table", "list of figures", FIGURES_MAX)
        return Runtime({str(key): str(value) for key, value in table.items() if value is not None})


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _size(text: str) -> int | None:
    match = _SIZE.fullmatch(text.strip().rstrip("."))
    number = _number(match.group(1)) if match else None
    return None if match is None or number is None else int(number * 1024 ** _POWER[match.group(2) or ""])


RUNTIME_KEYS_FIELD: Final = "runtimeKeys"
"""In LedgerMQ's answer to 26: the keys that can change while it runs, with commas between."""
CHANGE_TIMEOUT_MS: Final = 5_000
"""A change waits for a majority, and a follower hands it on to the leader first."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Every key with its value in force. `runtime_keys` is None of a broker that does not report them."""

    values: Mapping[str, str]
    runtime_keys: frozenset[str] | None


class ConfigSource:
    """Asks one broker. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def read(self, address: str) -> BrokerSettings:
        """26"""
        answer = await self._gateway.ask(address, RequestCode.GET_BROKER_CONFIG)
        try:
            values = parse_properties_text(answer.body)
        except PropertiesTextError as error:
            raise AskError(address, f"{address}: its configuration cannot be read: {error}") from error
        keys = answer.ext_fields.get(RUNTIME_KEYS_FIELD)
        return BrokerSettings(values, None if keys is None else frozenset(keys.split(",")))

    async def change(self, address: str, values: Mapping[str, str]) -> None:
        """25: all of these keys or none."""
        body = format_properties_text(values)
        code = RequestCode.UPDATE_BROKER_CONFIG
        await self._gateway.ask(address, code, body=body, timeout_ms=CHANGE_TIMEOUT_MS)


_TIMEOUT_MS = 10_000


class Garbage(StrEnum):
    """COMMIT_LOG: files past their time. CONSUME_QUEUES: files whose messages are gone. UNUSED_TOPICS: queues
    of topics that no longer exist."""

    COMMIT_LOG = "commit-log"
    CONSUME_QUEUES = "consume-queues"
    UNUSED_TOPICS = "unused-topics"


_CODES = {
    Garbage.COMMIT_LOG: RequestCode.DELETE_EXPIRED_COMMITLOG,
    Garbage.CONSUME_QUEUES: RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    Garbage.UNUSED_TOPICS: RequestCode.CLEAN_UNUSED_TOPIC,
}


async def clean(gateway: Gateway, address: str, garbage: Garbage) -> str | None:
    """What the broker reports as removed, if it reports that. Raises: AskError."""
    answer = await gateway.ask(address, _CODES[garbage], timeout_ms=_TIMEOUT_MS)
    return answer.remark


async def change_members(gateway: Gateway, leader_address: str, wanted: MemberChange) -> MemberPlanView:
    """Answered when the first step is committed, or, of a dry run, planned.

    Raises: AskError; where the broker would not do it, its `code` says so and its text is the broker's.
    """
    answer = await gateway.ask(
        leader_address,
        RequestCode.LEDGERMQ_CHANGE_MEMBERS,
        body=wanted.to_json(),
        timeout_ms=CHANGE_TIMEOUT_MS,
        accept=(ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION),
    )
    if answer.code != ResponseCode.SUCCESS:
        raise AskError(leader_address, answer.remark or "the change is refused", answer.code)
    try:
        return MemberPlanView.from_json(answer.body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise AskError(leader_address, f"its plan cannot be read: {where}: {first['msg']}") from error


async def begin_transfer(gateway: Gateway, leader_address: str, node_id: str) -> None:
    """Answered when the transfer has begun. Raises: AskError."""
    await gateway.ask(leader_address, RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": node_id})
