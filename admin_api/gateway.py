"""Sends requests to the name server and the brokers, bounded in number and in time.

A request first waits for a slot of its broker, then for a slot of the process, so requests to a hanging
broker do not use up the process's slots. After a timeout the broker's circuit breaker opens: requests to it
fail at once, and when the pause has ended a background probe decides whether it closes.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NoReturn, Protocol, TypeVar

from admin_api.settings import Settings
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, RemotingError, RequestTimeoutError

PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 8.0


class Breaker:
    """One address. After a silence it is left alone for a pause that doubles while the silence lasts.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self) -> None:
        self.is_silent = False
        """Whether asking would most likely only cost time."""
        self._heard_at_s = float("-inf")
        self._silent_since_s = 0.0
        self._asked_again_at_s = 0.0
        self._pause_s = 0.0

    def pause_left_s(self, now_s: float) -> float:
        """How long it is not asked yet; 0 when it may be probed again."""
        return max(0.0, self._asked_again_at_s - now_s) if self.is_silent else 0.0

    def heard(self, now_s: float) -> None:
        """It answered, with whatever code, or refused the connection at once."""
        self._heard_at_s = now_s
        self.is_silent = False
        self._pause_s = 0.0

    def timed_out(self, asked_at_s: float, now_s: float) -> None:
        """A request sent at `asked_at_s` has no answer by now.

        It does not count where something came from there meanwhile: then only that request was slow. Of
        several requests that wait together, the first to time out counts.
        """
        if self._heard_at_s >= asked_at_s:
            return
        if self.is_silent and asked_at_s < self._silent_since_s:
            return
        self.is_silent = True
        self._silent_since_s = now_s
        self._pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, 2 * self._pause_s))
        self._asked_again_at_s = now_s + self._pause_s


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_RELAYED = frozenset(
    {
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.LEDGERMQ_GRPC_CLIENTS,
    }
)
"""Requests that a broker passes on to a client or an endpoint: silence may be theirs."""


UNSUPPORTED_REMEMBERED_S: Final = 60.0
"""How long a request is not sent again to a broker that does not know its code."""


class Invoker(Protocol):
    """What is needed of `remoting.client.aio.RemotingClient`."""

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float = ...
    ) -> RemotingCommand: ...


class AskError(Exception):
    """One name server or broker gave no usable answer; the text is a sentence for people.

    `code` is the response code where it answered with one that was not wanted, else None.
    """

    def __init__(self, address: str, problem: str, code: int | None = None) -> None:
        super().__init__(problem)
        self.address = address
        self.code = code


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an AskError leaves behind where others answered."""

    address: str
    problem: str
    code: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Gathered(Generic[K, T]):
    """What several asks brought, and which brought nothing."""

    answers: dict[K, T]
    troubles: tuple[Trouble, ...] = ()


@dataclass(slots=True)
class _Line:
    """What is kept per address."""

    places: asyncio.Semaphore
    breaker: Breaker = field(default_factory=Breaker)
    probe: asyncio.Task[None] | None = None
    users: int = 0
    version: int = 0
    """RocketMQ's MQVersion, by the last answer; 0 before the first."""
    unsupported_until_s: dict[int, float] = field(default_factory=dict)
    """By request code: until when it is not sent, since the broker answered that it does not know it."""


class Gateway:
    """Asks one address, or many at once. Made and used on one loop; `client` is the caller's to close."""

    def __init__(
        self, client: Invoker, settings: Settings, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._settings = settings
        self._now_s = now_s
        self._places = asyncio.Semaphore(settings.asks_in_flight_max)
        self._lines: dict[str, _Line] = {}

    async def ask(
        self,
        address: str,
        code: RequestCode,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
        accept: Collection[int] = (ResponseCode.SUCCESS,),
    ) -> RemotingCommand:
        """The answer to one request, whose code is one of `accept`.

        The time-out (default `ask_timeout_ms`) counts from the sending; the wait before it ends at the latest
        when the asks in front of it do. A code that the broker does not know is not sent for a while: the
        answer is the same.

        Raises: AskError.
        """
        line = self._line_of(address)
        command = RemotingCommand(code=code, ext_fields=dict(ext or {}), body=body)
        timeout_s = (self._settings.ask_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        if line.breaker.is_silent:
            self._refuse_silent(address, line)
        if line.unsupported_until_s.get(code, 0.0) > self._now_s():
            answer = RemotingCommand(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"no request code {code:d}"
            )
        else:
            line.users += 1
            try:
                async with line.places, self._places:
                    if line.breaker.is_silent:
                        self._refuse_silent(address, line)
                    answer = await self._send(address, line, command, timeout_s)
            finally:
                line.users -= 1
        if answer.code not in accept:
            problem = f"{address} answered code {answer.code}: {answer.remark or 'no remark'}"
            raise AskError(address, problem, answer.code)
        return answer

    def version_of(self, address: str) -> int:
        """RocketMQ's MQVersion, as the broker's last answer has it; 0 where there was none yet."""
        return self._line_of(address).version

    def is_silent(self, address: str) -> bool:
        """Whether it did not answer in time when it was last asked; not where it refused the connection."""
        return self._line_of(address).breaker.is_silent

    async def ask_each(self, keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> Gathered[K, T]:
        """`ask` of every key (an address, or what stands for one), all at once; what fails is a Trouble.

        Answers stand in the order of the keys. Several troubles of one address with the same words are one.
        """
        wanted = list(dict.fromkeys(keys))
        outcomes = await asyncio.gather(*(outcome(ask(key)) for key in wanted))
        answers: dict[K, T] = {}
        troubles: dict[Trouble, None] = {}
        for key, (answer, error) in zip(wanted, outcomes, strict=True):
            if error is not None:
                troubles[Trouble(error.address, str(error), error.code)] = None
            else:
                answers[key] = answer  # type: ignore[assignment]  # there is an answer where there is no error
        return Gathered(answers, tuple(troubles))

    async def close(self) -> None:
        """Ends the probes of silent brokers."""
        probes = [line.probe for line in self._lines.values() if line.probe is not None]
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)

    def _line_of(self, address: str) -> _Line:
        line = self._lines.get(address)
        if line is None:
            if len(self._lines) >= self._settings.nodes_max:
                self._drop_idle_lines()
            line = self._lines[address] = _Line(asyncio.Semaphore(self._settings.asks_per_broker_max))
        return line

    def _drop_idle_lines(self) -> None:
        for address, line in tuple(self._lines.items()):
            if not line.users and line.probe is None:
                del self._lines[address]

    def _refuse_silent(self, address: str, line: _Line) -> NoReturn:
        """Raises: AskError. Starts a probe when the pause has ended."""
        left_s = line.breaker.pause_left_s(self._now_s())
        if left_s == 0.0 and line.probe is None:
            line.probe = asyncio.create_task(self._probe(address, line))
        raise AskError(address, f"{address} did not answer in time and is not asked for a moment")

    async def _probe(self, address: str, line: _Line) -> None:
        """Any answer will do; stock brokers refuse this request, and thereby live."""
        command = RemotingCommand(code=RequestCode.LEDGERMQ_NODE_STATUS)
        try:
            await self._send(address, line, command, self._settings.ask_timeout_ms / 1000)
        except AskError:
            return
        finally:
            line.probe = None

    async def _send(
        self, address: str, line: _Line, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Raises: AskError when there is no answer."""
        asked_at_s = self._now_s()
        try:
            answer = await self._client.invoke(address, command, timeout_s=timeout_s)
        except ConnectFailedError as error:
            line.unsupported_until_s.clear()  # another release may come up there
            if isinstance(error.__context__, TimeoutError):
                line.breaker.timed_out(asked_at_s, self._now_s())
            else:
                line.breaker.heard(self._now_s())
            raise AskError(address, f"{address} cannot be reached{_os_reason(error)}") from error
        except RequestTimeoutError as error:
            if command.code not in _RELAYED:
                line.breaker.timed_out(asked_at_s, self._now_s())
            raise AskError(address, str(error)) from error
        except RemotingError as error:
            raise AskError(address, str(error)) from error
        line.breaker.heard(self._now_s())
        if answer.version != line.version:
            line.version = answer.version
            line.unsupported_until_s.clear()
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and command.code not in _RELAYED:
            line.unsupported_until_s[command.code] = self._now_s() + UNSUPPORTED_REMEMBERED_S
        return answer


async def outcome(asking: Awaitable[T]) -> tuple[T | None, AskError | None]:
    """The answer, or why there is none."""
    try:
        return await asking, None
    except AskError as error:
        return None, error


def _os_reason(error: ConnectFailedError) -> str:
    """`: Connection refused` and the like, in the system's own words."""
    cause = error.__context__
    return f": {os.strerror(cause.errno)}" if isinstance(cause, OSError) and cause.errno else ""
