"""Transactions: END_TRANSACTION (37), the checks of open ones, and RESUME_CHECK_HALF_MESSAGE (323), by which
an operator has a discarded one checked again.
"""

from collections.abc import Callable
from functools import partial

from broker.feature import Core, Feature
from broker.state.topics import HALF_TOPIC
from broker.transactions.checks import ResumeProcessor, TransactionChecks
from broker.transactions.ends import EndTransactions
from broker.transactions.half import HALF_QUEUE_ID
from broker.transactions.ledger import GROUP, TransactionLedger
from remoting.codes import RequestCode


def first_open_half(core: Core) -> int | None:
    """Position of the first transaction that may be open, as the leader last wrote it.

    The pin is read from replicated offsets, not from the leader's table: every node deletes the same files.
    """
    offset = core.state.offsets.get(GROUP, HALF_TOPIC, HALF_QUEUE_ID) or 0
    return core.log.queues.position_at(HALF_TOPIC, HALF_QUEUE_ID, offset)


def make_ledger(core: Core) -> TransactionLedger:
    """The table of open transactions, which only the leader has."""
    return TransactionLedger(core.config, core.log, core.state, core.store_host, core.clock)


def make_ends(core: Core, ledger: TransactionLedger) -> EndTransactions:
    """Commits and rolls back; other nodes forward the requests to the leader."""
    return EndTransactions(
        config=core.config,
        log=core.log,
        router=core.router,
        end_position=core.opened.end_position,
        spawn=core.tasks.spawn,
        readiness=core.readiness,
        forwarder=core.forwarder,
        ledger=ledger,
    )


def make_checks(core: Core, ledger: TransactionLedger) -> TransactionChecks:
    """Asks producers for the outcome of transactions that stay open."""
    return TransactionChecks(core.config, core.state, core.clients, core.clock, core.now_ms, ledger)


def transaction_feature(core: Core) -> tuple[Feature, Callable[[], bool]]:
    """Also whether there is room for one more open transaction."""
    ledger = make_ledger(core)
    ends, checks = make_ends(core, ledger), make_checks(core, ledger)
    resume = ResumeProcessor(core.log, core.router, core.store_host, core.readiness)
    feature = Feature(
        handlers={RequestCode.RESUME_CHECK_HALF_MESSAGE: resume.handle},
        batch_handlers={RequestCode.END_TRANSACTION: ends.handle},
        services=(checks, ends, ledger),
        retention_pins=(partial(first_open_half, core),),
        waiting={"transaction": lambda: None if ledger.window is None else ledger.window.open_count},
    )
    return feature, ledger.has_room
