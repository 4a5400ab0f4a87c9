"""Sending: ordinary, sequenced and batch sends, messages sent back by consumers, replies of request-reply."""

from collections.abc import Callable

from broker.feature import Core, Feature
from broker.send.processor import SendMessageProcessor
from broker.send.replies import ReplyMessageProcessor
from broker.send.send_back import SendBackProcessor
from broker.send.sequenced import EndBatchProcessor
from remoting.codes import RequestCode


def make_send_processor(
    core: Core,
    may_prepare: Callable[[], bool] = lambda: True,
    may_time: Callable[[int], bool] = lambda out_ms: True,
    **bounds: int,
) -> SendMessageProcessor:
    """`may_prepare`: whether there is room for one more open transaction; `may_time`: for one more timer
    message that is due at a time. `bounds` replace those of SendMessageProcessor.
    """
    return SendMessageProcessor(
        config=core.config,
        log=core.log,
        readiness=core.readiness,
        forwarder=core.forwarder,
        state=core.state,
        counts=core.router.counts,
        clock=core.clock,
        store_host=core.store_host,
        statistics=core.statistics,
        puts=core.puts,
        rng=core.environment.rng,
        spawn=core.tasks.spawn,
        may_prepare=may_prepare,
        may_time=may_time,
        **bounds,
    )


def make_send_back(core: Core) -> SendBackProcessor:
    return SendBackProcessor(
        config=core.config,
        log=core.log,
        state=core.state,
        router=core.router,
        store_host=core.store_host,
        statistics=core.statistics,
        readiness=core.readiness,
    )


def make_replies(core: Core) -> ReplyMessageProcessor:
    return ReplyMessageProcessor(
        config=core.config,
        log=core.log,
        state=core.state,
        clients=core.clients,
        clock=core.clock,
        store_host=core.store_host,
        rng=core.environment.rng,
        forwarder=core.forwarder,
    )


def send_feature(core: Core, may_prepare: Callable[[], bool], may_time: Callable[[int], bool]) -> Feature:
    """`may_prepare` and `may_time` as for make_send_processor."""
    sends = make_send_processor(core, may_prepare, may_time)
    end_batch = EndBatchProcessor(core.log, core.state, core.readiness, sends.sequencing)
    return Feature(
        handlers={
            RequestCode.LEDGERMQ_END_BATCH: end_batch.end_batch,
            RequestCode.CONSUMER_SEND_MSG_BACK: make_send_back(core).handle,
            **make_replies(core).handlers(),
        },
        batch_handlers=sends.batch_handlers(),
        waiting={"send_for_topic": lambda: sends.held_count},
    )
