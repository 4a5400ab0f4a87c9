"""How groups ask for the messages of topics when the broker assigns the queues: by pull or by pop
(MessageRequestModeManager).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from broker.state.groups import group_name_error
from broker.state.topics import ConfigFormatError, topic_name_error

REQUEST_MODES_MAX = 200_000
"""Of topics and groups together, each pair once."""
PULL = "PULL"
POP = "POP"
_SHARE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RequestMode:
    """SetMessageRequestModeRequestBody. `share_queue_num`: how many consumers in POP mode share the queues of
    one; 0 and below: all share all.
    """

    topic: str
    group: str
    mode: str = PULL
    share_queue_num: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.share_queue_num,
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, data: object) -> "RequestMode":
        """Read the wire form. Raises ConfigFormatError."""
        if not isinstance(data, dict):
            raise ConfigFormatError("the message request mode is no table")
        topic, group = data.get("topic"), data.get("consumerGroup")
        if not isinstance(topic, str) or not isinstance(group, str):
            raise ConfigFormatError("topic or consumerGroup is missing")
        error = topic_name_error(topic) or group_name_error(group)
        if error is not None:
            raise ConfigFormatError(error)
        mode = data.get("mode", PULL)
        if mode not in (PULL, POP):
            raise ConfigFormatError(f"mode {str(mode)[:40]!r} is neither PULL nor POP")
        share = data.get("popShareQueueNum", 0)
        if isinstance(share, bool) or not isinstance(share, int) or not -_SHARE_MAX <= share <= _SHARE_MAX:
            raise ConfigFormatError("popShareQueueNum is not a whole number")
        return cls(topic, group, mode, share)


class RequestModes:
    """The modes that were set. Changed only by records of the log."""

    __slots__ = ("_modes",)

    def __init__(self, modes: Mapping[tuple[str, str], RequestMode] | None = None) -> None:
        self._modes: dict[tuple[str, str], RequestMode] = dict(modes or {})

    def __len__(self) -> int:
        return len(self._modes)

    def __iter__(self) -> Iterator[RequestMode]:
        return iter(self._modes.values())

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._modes.get((topic, group))

    def put(self, mode: RequestMode) -> None:
        self._modes[mode.topic, mode.group] = mode

    def drop_topic(self, name: str) -> None:
        self._drop([key for key in self._modes if key[0] == name])

    def drop_group(self, name: str) -> None:
        self._drop([key for key in self._modes if key[1] == name])

    def _drop(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            del self._modes[key]

    def copy(self) -> "RequestModes":
        return RequestModes(self._modes)

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot."""
        for mode in self._modes.values():
            yield [mode.topic, mode.group, mode.mode, mode.share_queue_num]

    @classmethod
    def from_rows(cls, rows: Iterable[list[Any]]) -> "RequestModes":
        """Raises ValueError, TypeError."""
        modes = cls()
        for topic, group, mode, share in rows:
            modes.put(RequestMode(str(topic), str(group), str(mode), index(share)))
        return modes
