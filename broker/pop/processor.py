"""POP consumption (200050 to 200055, 200151): see docs/pop.md."""

from broker.consume.offset_commits import OffsetCommits
from broker.context import BrokerContext
from broker.pop.ledger import PopLedger
from broker.pop.loading import snapshot_hold
from broker.pop.peek import PopLooks
from broker.pop.revival import Revival
from broker.pop.service import PopService
from broker.readiness import Readiness
from remoting.codes import RequestCode


def register(context: BrokerContext) -> None:
    readiness = Readiness(
        context.log, context.engine, context.config.dledger_self_id, context.environment.monotonic_ms
    )
    ledger = PopLedger(
        context.config,
        context.log,
        context.state,
        OffsetCommits.of(context),
        context.store_host,
        context.clock,
        context.environment.monotonic_ms,
    )
    revival = Revival(context, ledger)
    service = PopService(context, ledger, revival, readiness)
    looks = PopLooks(context, ledger, service, readiness)
    context.router.register_batch(service.codes, service.handle)
    context.router.register(RequestCode.PEEK_MESSAGE, looks.peek)
    context.router.register(RequestCode.NOTIFICATION, looks.notify)
    context.router.register(RequestCode.POLLING_INFO, looks.polling_info)
    context.close_listeners += [service.connection_closed, looks.connection_closed]
    context.log_holds.append(lambda: snapshot_hold(context.log))
    context.log_rewriters.append(ledger.rewrite_before)
    context.waiting["pop"] = lambda: None if ledger.table is None else ledger.table.in_flight
    context.waiting["pop_request"] = lambda: len(service.holding.waits)
    context.services += [revival, looks, service, ledger]
