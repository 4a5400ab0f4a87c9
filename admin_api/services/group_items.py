"""One line of the list of groups, put together from what every broker says. Pure."""

from collections.abc import Iterable, Mapping

from admin_api.schemas.consumer_groups import ConsumerGroupItem, GroupPresence, GroupSort
from admin_api.services.group_overview import BROADCASTING, Overview, is_system_group
from admin_api.sources.consumer_groups import Connections
from broker.admin.types import GroupProgress

Clients = Mapping[str, Connections | None]
"""Broker name -> who of a group is connected there, of the brokers that said it."""
_Known = Mapping[str, GroupProgress]


def make_item(overview: Overview, name: str, clients: Clients | None = None) -> ConsumerGroupItem:
    """`clients` are those of stock brokers, where they were asked."""
    known = overview.of_group(name)
    configs = [(at, table[name]) for at, table in overview.configs.items() if name in table]
    enabled = {config.consume_enable for _, config in configs}
    online = next((group for group in known.values() if group.members), None)
    stock = next((each for each in (clients or {}).values() if each is not None), None)
    model = online.message_model if online else stock.message_model if stock else None
    lags = {} if model == BROADCASTING else _lag_by_topic(overview, name, known)
    tps = [group.consume_tps for group in known.values()]
    have_all_told = _have_all_told(overview, clients)
    members = _members(overview, known, clients, have_all_told=have_all_told)
    return ConsumerGroupItem(
        group=name,
        brokers=sorted(at for at, _ in configs),
        is_system=is_system_group(name),
        presence=_presence(members, have_all_told=have_all_told),
        members=members,
        message_model=model,
        consume_type=online.consume_type if online else stock.consume_type if stock else None,
        consume_enabled=enabled.pop() if len(enabled) == 1 else None,
        lag=total(lags.values()),
        is_lag_partial=bool(overview.troubles),
        unknown_queues=_unknown_queues(known) if known and model != BROADCASTING else None,
        lag_by_topic=lags,
        consume_tps=sum(tps) if tps else None,
        pop_in_flight=total(group.pop_in_flight for group in known.values()),
    )


def total(numbers: Iterable[int | None]) -> int | None:
    """The sum of what is known; None when nothing is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _lag_by_topic(overview: Overview, name: str, known: _Known) -> dict[str, int | None]:
    lags: dict[str, list[int | None]] = {}
    for group in known.values():
        for topic, progress in group.topics.items():
            lags.setdefault(topic, []).append(progress.lag)
    for groups in overview.stock_lags.values():
        for topic, lag in groups.get(name, {}).items():
            lags.setdefault(topic, []).append(lag)
    return {topic: total(lags[topic]) for topic in sorted(lags)}


def _unknown_queues(known: _Known) -> int:
    return sum(topic.unknown_queues for group in known.values() for topic in group.topics.values())


def _members(
    overview: Overview, known: _Known, clients: Clients | None, *, have_all_told: bool
) -> int | None:
    """A consumer connects to every broker, so the largest count is nearest to the number of consumers."""
    counts = [group.members for group in known.values()]
    counts += [0 if each is None else len(each.connection_set) for each in (clients or {}).values()]
    if not counts and any(message is not None for message in overview.progress.values()):
        counts.append(0)
    highest = max(counts, default=None)
    return highest if highest or have_all_told else None


def _presence(members: int | None, *, have_all_told: bool) -> GroupPresence:
    if members:
        return GroupPresence.ONLINE
    return GroupPresence.OFFLINE if have_all_told else GroupPresence.UNKNOWN


def _have_all_told(overview: Overview, clients: Clients | None) -> bool:
    """Whether every broker said who is connected."""
    silent = overview.brokers.masters.keys() - overview.progress.keys()
    if silent or overview.brokers.troubles:
        return False
    return all(name in (clients or {}) for name in overview.stock_brokers)


def ordered(
    items: Iterable[ConsumerGroupItem], sort: GroupSort, *, is_descending: bool
) -> list[ConsumerGroupItem]:
    """By name within the same; what is unknown comes last either way."""
    by_name = sorted(items, key=lambda item: item.group)
    if sort is GroupSort.NAME:
        return by_name[::-1] if is_descending else by_name
    known = [item for item in by_name if _figure(item, sort) is not None]
    unknown = [item for item in by_name if _figure(item, sort) is None]
    sign = -1 if is_descending else 1
    return sorted(known, key=lambda item: sign * (_figure(item, sort) or 0)) + unknown


def _figure(item: ConsumerGroupItem, sort: GroupSort) -> float | None:
    match sort:
        case GroupSort.LAG:
            return item.lag
        case GroupSort.MEMBERS:
            return item.members
        case _:
            return item.consume_tps
