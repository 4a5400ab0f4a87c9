"""POP consumption (200050 to 200055, 200151): see docs/pop.md."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from broker.consume.consumers import Consumers
from broker.feature import Core, Feature
from broker.pop.checks import PopChecks
from broker.pop.fetch import Fetcher
from broker.pop.ledger import PopLedger, snapshot_hold
from broker.pop.peek import PopPeeks
from broker.pop.revival import Revival
from broker.pop.service import PopService
from broker.pop.table import GroupQueue


@dataclass(frozen=True, slots=True)
class PopParts:
    """What serves the POP requests of one broker."""

    ledger: PopLedger
    revival: Revival
    service: PopService
    peeks: PopPeeks


def make_pop(core: Core, consumers: Consumers) -> PopParts:
    config, log, state = core.config, core.log, core.state
    ledger = PopLedger(config, log, state, consumers.commits, core.store_host, core.clock, core.now_ms)
    revival = Revival(config, log, state, core.now_ms, core.store_host, ledger)
    checks = PopChecks(config, state, consumers.sql_filters)
    fetcher = Fetcher(
        config=config,
        log=log,
        state=state,
        clock=core.clock,
        now_ms=core.now_ms,
        statistics=core.statistics,
        reads=core.reads,
        resets=consumers.resets,
        ledger=ledger,
        commits=consumers.commits,
    )
    service = PopService(
        log=log,
        state=state,
        router=core.router,
        clock=core.clock,
        now_ms=core.now_ms,
        spawn=core.tasks.spawn,
        ledger=ledger,
        revival=revival,
        readiness=core.readiness,
        checks=checks,
        fetcher=fetcher,
    )
    peeks = PopPeeks(
        config=config,
        log=log,
        state=state,
        router=core.router,
        clock=core.clock,
        now_ms=core.now_ms,
        reads=core.reads,
        ledger=ledger,
        service=service,
        readiness=core.readiness,
        checks=checks,
    )
    return PopParts(ledger, revival, service, peeks)


def pop_feature(
    core: Core, consumers: Consumers
) -> tuple[Feature, Callable[[], Iterable[GroupQueue] | None]]:
    """Also the queues that groups consume by POP; None while this node does not know them."""
    pop = make_pop(core, consumers)
    ledger, service = pop.ledger, pop.service
    feature = Feature(
        handlers=pop.peeks.handlers(),
        batch_handlers=service.batch_handlers(),
        services=(pop.revival, pop.peeks, service, ledger),
        retention_pins=(partial(snapshot_hold, core.log),),
        log_rewriters=(ledger.rewrite_before,),
        waiting={
            "pop": lambda: None if ledger.table is None else ledger.table.in_flight,
            "pop_request": lambda: len(service.long_polling.waits),
        },
        connection_closed=(service.connection_closed, pop.peeks.connection_closed),
    )
    return feature, lambda: None if ledger.table is None else ledger.table.group_queues.values()
