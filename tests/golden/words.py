"""Messages, events and states in the short words of the golden traces."""

import enum
from dataclasses import fields

from dledger.core.membership import Configuration, ConfigurationEntry
from dledger.core.messages import Message
from dledger.core.output import Event
from dledger.core.reads import FIRST_ROUND, is_round
from dledger.core.status import NodeStatus, PeerStatus
from dledger.core.types import EntryRange


def range_words(first_index: int, last_index: int) -> str:
    return f"{first_index}..{last_index}"


def message_words(message: Message) -> str:
    """Kind and fields; entries as first..last@term."""
    words = [type(message).__name__]
    for spec in fields(message):
        words += _field_words(spec.name, getattr(message, spec.name))
    return " ".join(words)


def event_words(event: Event) -> str:
    words = [f"[{type(event).__name__}]"]
    for spec in fields(event):
        words += _field_words(spec.name, getattr(event, spec.name))
    return " ".join(words)


def _field_words(name: str, value: object) -> list[str]:
    if isinstance(value, EntryRange):
        return [f"{range_words(value.first_index, value.last_index)}@{value.term}"]
    if isinstance(value, ConfigurationEntry):
        return [f"{name}={value.index}@{value.term} {configuration_words(value.configuration)}"]
    if isinstance(value, Configuration):
        return [configuration_words(value)]
    if value is None and name in ("base", "configuration"):
        return []
    if isinstance(value, bool):
        return [name.removeprefix("is_")] if value else []
    if isinstance(value, enum.Enum):
        return [f"{name}={value.name}" if name in ("old", "new") else value.name]
    if name == "truncate_index" and isinstance(value, int) and is_round(value):
        return [f"round={value - FIRST_ROUND}"]
    if name == "base" and value is None:
        return []
    if name == "reason":
        return [f"({value})"]
    return [f"{name.removesuffix('_index').removesuffix('_ms')}={value}"]


def configuration_words(configuration: Configuration) -> str:
    """Voters by id, others with their role."""
    members = [
        each.id + ("" if each.is_voter else f":{each.role.value}")
        + (f">{each.replaces}" if each.replaces else "")
        for each in configuration.members
    ]  # fmt: skip
    return f"{{{' '.join(members)}}}"


def status_words(status: NodeStatus) -> str:
    epochs = " ".join(f"{epoch.term}@{epoch.first_index}" for epoch in status.epochs)
    words = [
        f"{status.role.value} term={status.term} leader={status.leader_id}",
        f"log={range_words(status.begin_index, status.end_index)}",
        f"commit={status.commit_index} persisted={status.persisted_index} epochs=[{epochs}]",
    ]
    words += [_peer_words(peer) for peer in status.peers if peer.push_state is not None]
    return " ".join(words)


def _peer_words(peer: PeerStatus) -> str:
    assert peer.push_state is not None
    match = "?" if peer.match_index is None else str(peer.match_index)
    return f"{peer.id}:{peer.push_state.value}:{match}"
