"""Messages that are delivered later: after one of the delay levels, or at a time of their own."""

import asyncio
from collections.abc import Callable
from functools import partial

from broker.feature import Core, Feature
from broker.monitoring.statistics import RateMeter
from broker.timer.admission import TimerLimits
from broker.timer.delay import DelayDelivery
from broker.timer.delivery import TimerDelivery
from broker.timer.journal import TimerJournal
from broker.timer.recalls import RecallProcessor, Recalls
from broker.timer.scheduling import SCHEDULE_TOPIC
from remoting.codes import RequestCode


def make_delays(core: Core) -> DelayDelivery:
    return DelayDelivery(core.config, core.log, core.state, core.store_host, core.clock)


def delay_feature(core: Core) -> Feature:
    return Feature(services=(make_delays(core),), retention_pins=(partial(first_delayed, core),))


def first_delayed(core: Core) -> int | None:
    """Position of the first delayed message, of any level, that was not delivered."""
    progress = core.state.delay_offsets
    levels = range(1, len(core.config.delay_levels_ms) + 1)
    places = [
        core.log.queues.position_at(SCHEDULE_TOPIC, level - 1, progress.get(level, 0)) for level in levels
    ]
    return min((position for position in places if position is not None), default=None)


def make_recall_processor(core: Core, recalls: Recalls) -> RecallProcessor:
    return RecallProcessor(
        config=core.config,
        log=core.log,
        state=core.state,
        router=core.router,
        clock=core.clock,
        end_position=core.opened.end_position,
        readiness=core.readiness,
        recalls=recalls,
    )


def make_timers(core: Core) -> tuple[TimerJournal, Recalls, TimerDelivery]:
    config, log, clock = core.config, core.log, core.clock
    journal = TimerJournal(config, log, core.environment.fs, core.members)
    recalls = Recalls(log, journal, clock)
    return (
        journal,
        recalls,
        TimerDelivery(config, log, core.state, core.store_host, clock, journal, recalls),
    )


def timer_feature(core: Core) -> tuple[Feature, Callable[[int], bool]]:
    """Also a function that tests the limits for one more timer message of a delivery time."""
    log = core.log
    journal, recalls, delivery = make_timers(core)
    processor = make_recall_processor(core, recalls)
    rates = RateMeter(lambda: (journal.placed, journal.delivered))
    feature = Feature(
        handlers={RequestCode.RECALL_MESSAGE: processor.handle},
        services=(journal, delivery, rates),
        retention_pins=(journal.hold,),
        # Every node has the whole index: only the leader reports its size, or a sum would count it often.
        waiting={"timer": lambda: journal.index.pending.count if log.is_writable() else None},
        runtime_figures=(partial(timer_figures, journal, delivery, rates),),
    )
    return feature, TimerLimits(core.config, journal.index).may_time


def timer_figures(journal: TimerJournal, delivery: TimerDelivery, rates: RateMeter) -> dict[str, str]:
    """What mqadmin's brokerStatus and clusterList show of timers: how many s the first one is late, how many
    are in the queue and not placed yet, how many wait, and how many a second were placed and delivered.
    """
    now_s = asyncio.get_running_loop().time()
    placed, delivered = (rates.rates(counter, now_s)[0] for counter in (0, 1))
    return {
        "timerReadBehind": str(delivery.late_ms() // 1_000),
        "timerOffsetBehind": str(journal.behind),
        "timerCongestNum": str(journal.index.pending.count),
        "timerEnqueueTps": f"{placed:.2f}",
        "timerDequeueTps": f"{delivered:.2f}",
    }
