"""315 VIEW_BROKER_STATS_DATA: messages in and out, by topic and group (broker/monitoring/statistics.py)."""

from typing import Any

from broker.monitoring.statistics import STATS, BrokerStatistics, Figures
from broker.responses import json_answer
from broker.state.state import ReplicatedState
from commitlog.log import MessageLog
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.admin import ViewBrokerStatsRequestHeader
from remoting.router import Handlers


class StatsAdmin:
    """Shows the statistics; has the log's puts counted."""

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
        statistics: BrokerStatistics,
    ) -> None:
        self._log = log
        self._state = state
        self._statistics = statistics
        self._topic_count = len(state.topics)
        self._is_started = False
        log.on_writable_change(self._on_writable_change)
        state.on_topics_changed(self.on_topics_changed)

    def handlers(self) -> Handlers:
        return {
            RequestCode.VIEW_BROKER_STATS_DATA: self.view,
        }

    async def start(self) -> None:
        """What was in the log at the start has been dispatched by now."""
        self._is_started = True
        self._on_writable_change(self._log.is_writable())

    async def stop(self) -> None:
        self._is_started = False
        self._log.remove_listener(self._statistics.put)

    def view(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """315"""
        header = ViewBrokerStatsRequestHeader.parse(request.ext_fields)
        windows = self._statistics.view(header.stats_name, header.stats_key)
        if windows is None:
            remark = f"The stats <{header.stats_name[:64]}> <{header.stats_key[:512]}> not exist"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        _, is_size = STATS[header.stats_name]
        minute, hour, day = (_item(figures, is_size) for figures in windows)
        return json_answer(request, {"statsDay": day, "statsHour": hour, "statsMinute": minute})

    def _on_writable_change(self, is_writable: bool) -> None:
        """A follower has the same messages, and a node that starts has them again: neither put them."""
        if is_writable and self._is_started:
            self._log.add_listener(self._statistics.put)
        else:
            self._log.remove_listener(self._statistics.put)

    def on_topics_changed(self) -> None:
        count = len(self._state.topics)
        if count < self._topic_count:
            self._statistics.keep_topics(self._state.topics)
        self._topic_count = count


def _item(figures: Figures, is_size: bool) -> dict[str, Any]:
    total = figures.bytes if is_size else figures.count
    average = total / figures.calls if figures.calls else 0.0
    return {"avgpt": average, "sum": total, "tps": figures.per_second(total)}
