"""Whole requests at a broker's and a name server's handlers: whatever it is, the answer is one the protocol
has, and no handler fails in a way it did not foresee.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

from broker.app import install_features
from broker.config import config_from
from namesrv.config import ConfigProcessor, KvConfig, NameServerConfig, NameServerSwitches
from namesrv.queries import QueryProcessor
from namesrv.registration import BrokerProcessor
from namesrv.rights import BrokerRights
from namesrv.route_info import RouteInfoManager
from remoting.command import RemotingCommand, decode_command, encode_command
from remoting.errors import CommandError
from remoting.router import Router
from tests.fuzz.header_classes import header_classes, sample_of
from tests.fuzz.target import Target
from tests.fuzz.targets.broker_bodies import _CLIENT_CONFIG, _SUB_MESSAGE
from tests.support.broker_parts import BrokerParts, FakeEngine
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog
from tests.unit.broker.heartbeat_samples import JAVA_CONSUMER

REQUESTS_PER_ROUTER = 200
"""Then a new one is made, so that a failure does not depend on a long past."""
TURNS = 6
_BODIES = (
    JAVA_CONSUMER,
    _CLIENT_CONFIG,
    _SUB_MESSAGE,
    b'{"groupName":"G","retryQueueNums":1}',
    b'{"clientId":"c","consumerGroup":"G","mqSet":[{"topic":"T","queueId":0,"brokerName":"b"}]}',
    b'{"counter":1,"stateVersion":2,"timestamp":3}',
    b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"perm":6}}}}',
)


class StrictRouter(Router):
    """Keeps the faults that a router logs."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[BaseException] = []

    def _report(self, request: RemotingCommand, error: BaseException) -> None:
        self.faults.append(error)


class Handlers:
    """A router in a loop of its own, made anew every so often."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, StrictRouter]]) -> None:
        self._make = make
        self._handled = 0
        self._router: StrictRouter | None = None
        self._runner: asyncio.Runner | None = None

    def codes(self) -> list[int]:
        with asyncio.Runner() as runner:
            return sorted(runner.run(self._make()).codes)

    def check(self, payload: bytes) -> None:
        try:
            request = decode_command(payload)
        except CommandError:
            return
        if self._router is None or self._runner is None or self._handled >= REQUESTS_PER_ROUTER:
            self.close()
            self._runner = asyncio.Runner()
            self._router = self._runner.run(self._make())
        self._handled += 1
        self._runner.run(self._handle(self._router, request))

    async def _handle(self, router: StrictRouter, request: RemotingCommand) -> None:
        connection = FakeConnection()
        router.dispatch([(connection.as_connection, [request], request.code)])
        for _ in range(TURNS):
            await asyncio.sleep(0)
        faults, router.faults = router.faults, []
        for fault in faults:
            raise fault
        answers = [answer for answer in connection.answers if answer.is_response]
        assert len(answers) <= 1, answers
        assert not (answers and request.is_oneway), answers

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._router = self._runner = None
        self._handled = 0


async def _broker_router() -> StrictRouter:
    log = FakeLog()
    router = StrictRouter()
    config = config_from({"storePathRootDir": tempfile.gettempdir()})
    install_features(BrokerParts(config, log, FakeEngine(), router).core)
    return router


async def _name_server_router() -> StrictRouter:
    config, switches, router = NameServerConfig(), NameServerSwitches(), StrictRouter()
    tables, kv_config = RouteInfoManager(config.brokers_max, config.topics_max), KvConfig(None)
    BrokerProcessor(tables, kv_config, config, switches, BrokerRights({}), lambda: 0).register(router)
    QueryProcessor(tables, kv_config, switches).register(router)
    ConfigProcessor(kv_config, config, switches).register(router)
    return router


def _samples(codes: list[int]) -> tuple[bytes, ...]:
    """Each code with all fields that any header knows, and with each of the bodies in turn."""
    ext: dict[str, str] = {}
    for header_class in header_classes():
        ext |= sample_of(header_class).ext_fields()
    ext |= {"topic": "TBW102", "group": "G", "consumerGroup": "G", "queueId": "0", "batch": "false"}
    ext |= {"compressed": "false", "bodyCrc32": "0", "sysFlag": "0", "properties": "KEYS\x01k\x02"}
    letters = {"a": "P", "b": "TBW102", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "17", "h": "0"}
    frames = []
    for number, code in enumerate(codes):
        fields = ext if code not in (310, 320) else {**letters, "m": "true" if code == 320 else "false"}
        body = _SUB_MESSAGE if code == 320 else _BODIES[number % len(_BODIES)]
        frames.append(encode_command(RemotingCommand(code, number, ext_fields=fields, body=body))[4:])
    return tuple(frames)


_BROKER = Handlers(_broker_router)
_NAME_SERVER = Handlers(_name_server_router)


def close() -> None:
    """End the loops, which would be reported as left open."""
    for handlers in (_BROKER, _NAME_SERVER):
        with contextlib.suppress(RuntimeError):
            handlers.close()


TARGETS = (
    Target("broker_request", _BROKER.check, _samples(_BROKER.codes())),
    Target("name_server_request", _NAME_SERVER.check, _samples(_NAME_SERVER.codes())),
)
