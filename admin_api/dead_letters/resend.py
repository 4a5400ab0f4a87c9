"""Sends dead letters again, chosen by id or by time, to the group's retry topic or to the original topic.

A letter is not sent twice: its copy carries the letter's id in a property, and copies with the same unique
key are searched before. Copies made by this process are also remembered, because a stock broker's index may
lag.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.dead_letters.service import Dlq, DlqResendOrder, DlqTarget, Scan
from admin_api.errors import InvalidError, NotFoundError, UnavailableError
from admin_api.gateway import AskError
from admin_api.messages.sending import copy_of, original_topic, resent_at_ms, send, time_text, unix_ms
from admin_api.messages.views import id_of
from admin_api.messages.window import FOREVER_MS, Search
from remoting.record import Record
from remoting.topic_names import DLQ_PREFIX, RETRY_PREFIX

EXAMINED_MAX: Final = 2_000
"""Letters of one window that are checked for not having been resent."""
FAILURES_MAX: Final = 3
"""So many failures in a row, and the rest is not tried."""
RESENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of the bodies of one call, which are held until the call has ended."""
FOUND_AT_ONCE: Final = 8
"""Letters searched for at one time, whose bodies may go beyond that."""


@dataclass(frozen=True, slots=True)
class _Pick:
    record: Record
    topic: str
    resent_ms: int | None


class DlqResend:
    """The change for one order."""

    action = Action.DLQ_RESEND

    def __init__(
        self,
        dlq: Dlq,
        group: str,
        order: DlqResendOrder,
        now_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self.target = group
        self._dlq = dlq
        self._messages = dlq.messages
        self._order = order
        self._resent = dlq.resent
        self._now_ms = now_ms
        self._picks: list[_Pick] = []
        self._is_more = False

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, InvalidError, AskError, ChangeRefusedError."""
        await self._dlq.places(self.target)
        self._is_more = False
        self._picks = await (self._by_ids() if self._order.ids else self._by_time())
        if not self._picks:
            raise ChangeRefusedError(f"No dead letter of {self.target} in this window waits to be resent.")
        effects = tuple(
            Effect(
                id_of(pick.record), _before(pick), None if pick.resent_ms else f"once more in {pick.topic}"
            )
            for pick in self._picks
        )
        warnings = [*self._warnings(), *await self._missing_topics()]
        return Preview(self.action, self.target, effects, tuple(warnings), is_destructive=True)

    def _warnings(self) -> list[str]:
        left_out = sum(pick.resent_ms is not None for pick in self._picks)
        warnings = []
        if self._order.target is DlqTarget.TOPIC:
            warnings.append("Every group that consumes the topics gets the messages once more.")
        if left_out:
            warnings.append(f"{left_out} were resent already and are left out.")
        if self._is_more:
            warnings.append("There are more: call again, those that were resent are passed over.")
        return warnings

    async def _missing_topics(self) -> list[str]:
        """What happens to letters whose topic is not there. Raises: UnavailableError."""
        warnings = []
        for topic in sorted({pick.topic for pick in self._picks if pick.resent_ms is None}):
            try:
                await self._messages.places.of_topic(topic)
            except NotFoundError as error:
                is_retry = topic.startswith(RETRY_PREFIX)
                what = "A broker makes it." if is_retry else "Its letters cannot be resent there."
                warnings.append(f"{error} {what}")
        return warnings

    async def _by_ids(self) -> list[_Pick]:
        """Raises: NotFoundError and the others for the first that cannot be had; InvalidError for too many
        bytes.
        """
        ids = list(dict.fromkeys(letter_id.upper() for letter_id in self._order.ids))
        picks: list[_Pick] = []
        picked_bytes = 0
        for first in range(0, len(ids), FOUND_AT_ONCE):
            part = await asyncio.gather(*map(self._named, ids[first : first + FOUND_AT_ONCE]))
            picks += part
            picked_bytes += sum(len(pick.record.body) for pick in part)
            if picked_bytes > RESENT_BYTES_MAX:
                raise InvalidError(
                    f"The first {len(picks)} of these {len(ids)} letters have {picked_bytes} bytes, and "
                    f"{RESENT_BYTES_MAX} can be resent in one call: name fewer."
                )
        return picks

    async def _named(self, letter_id: str) -> _Pick:
        found = await self._messages.find(letter_id)
        if found.record.topic != DLQ_PREFIX + self.target:
            raise InvalidError(f"{id_of(found.record)} is no dead letter of {self.target}.")
        return await self._pick(found.record)

    async def _by_time(self) -> list[_Pick]:
        """The oldest that were not resent yet, up to the order's limit."""
        order = self._order
        to_ms = FOREVER_MS if order.to_ms is None else order.to_ms
        scan = Scan(self._messages, Search(DLQ_PREFIX + self.target, order.from_ms, to_ms))
        picks: list[_Pick] = []
        examined = picked_bytes = 0
        async for record, _ in scan.records():
            if len(picks) >= order.limit or examined >= EXAMINED_MAX or picked_bytes >= RESENT_BYTES_MAX:
                self._is_more = True
                break
            examined += 1
            pick = await self._pick(record)
            if pick.resent_ms is None:
                picks.append(pick)
                picked_bytes += len(record.body)
        self._is_more = self._is_more or scan.is_cut
        return picks

    async def _pick(self, record: Record) -> _Pick:
        """Raises: UnavailableError when it cannot be known whether it was resent."""
        topic = RETRY_PREFIX + self.target
        if self._order.target is DlqTarget.TOPIC:
            topic = original_topic(record)
            if topic == record.topic:
                raise InvalidError(f"{id_of(record)} does not name its original topic.")
        known_ms = self._resent.at_ms.get((id_of(record), topic))
        if known_ms is None:
            known_ms = await resent_at_ms(self._messages, record, topic)
        return _Pick(record, topic, known_ms)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        """One after the other, in the order they came."""
        outcomes: list[Outcome] = []
        failures = 0
        for pick in self._picks:
            letter_id = id_of(pick.record)
            if pick.resent_ms is not None:
                continue
            if failures >= FAILURES_MAX:
                outcomes.append(Outcome(letter_id, ok=False, problem="not tried: the ones before failed"))
                continue
            outcomes.append(await self._resend(pick, letter_id))
            failures = 0 if outcomes[-1].ok else failures + 1
        return outcomes

    async def _resend(self, pick: _Pick, letter_id: str) -> Outcome:
        now_ms = self._now_ms()
        try:
            broker_name = await self._writer(pick.topic)
            message = copy_of(pick.record, pick.topic, now_ms)
            outcome = await send(self._messages, broker_name, message, letter_id)
        except AskError as error:
            return Outcome.failed(letter_id, error)
        except (NotFoundError, UnavailableError) as error:
            return Outcome(letter_id, ok=False, problem=str(error))
        self._resent.remember(letter_id, pick.topic, now_ms)
        return outcome

    async def _writer(self, topic: str) -> str:
        """Raises: NotFoundError, UnavailableError."""
        places = self._messages.places
        try:
            place = await places.writer_of(topic)
        except NotFoundError:
            if not topic.startswith(RETRY_PREFIX):
                raise
            # Brokers make a group's retry topic with the first message to it; those with its letters know it.
            place = await places.writer_of(DLQ_PREFIX + self.target)
        return place.broker_name


def _before(pick: _Pick) -> str | None:
    return None if pick.resent_ms is None else f"resent already, at {time_text(pick.resent_ms)}"
