"""The store's requests: messages by key and by position, and the removal of old files."""

from broker.feature import Core, Feature
from broker.store.queries import KeyQueries, QueryProcessor
from broker.store.retention import Retention, RetentionAdmin
from commitlog.key_index import KeyIndex
from commitlog.key_upkeep import KeyUpkeep


def query_feature(core: Core) -> Feature:
    """Raises OSError when the key index cannot be opened."""
    if not core.config.message_index_enable:
        return Feature(handlers=_query_processor(core, None).handlers())
    store = core.config.store_path_root_dir
    index = KeyIndex(core.environment.fs, store, core.log, end_position=core.opened.end_position())
    core.log.add_listener(index.on_batch)
    queries = KeyQueries(index, core.log, lambda: core.state.deleted_at)
    return Feature(handlers=_query_processor(core, queries).handlers(), services=(KeyUpkeep(index),))


def _query_processor(core: Core, queries: KeyQueries | None) -> QueryProcessor:
    return QueryProcessor(core.log, core.state, queries, core.opened.end_position)


def retention_feature(core: Core, others: Feature) -> Feature:
    """`others`: what all features need of the log. A plain log keeps everything."""
    removal = core.opened.removal
    if removal is None:
        return Feature(handlers=RetentionAdmin(None).handlers())
    retention = Retention(
        config=core.config,
        log=core.log,
        state=core.state,
        clock=core.clock,
        removal=removal,
        pins=others.retention_pins,
        rewriters=others.log_rewriters,
    )
    return Feature(handlers=RetentionAdmin(retention).handlers(), services=(retention,))
