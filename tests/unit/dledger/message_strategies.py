"""Hypothesis strategies for every kind of replication message, from the fields of its dataclass."""

import enum
import typing
from typing import Any

from hypothesis import strategies as st

from dledger.codec import INTEGER_MAX, INTEGER_MIN, TEXT_BYTES_MAX, Handshake
from dledger.core.membership import (
    HOST_CHARACTERS_MAX,
    ID_CHARACTERS_MAX,
    VOTERS_MAX,
    Configuration,
    ConfigurationEntry,
    Member,
    MemberRole,
)
from dledger.core.messages import Message
from dledger.core.types import EntryRange

integers = st.integers(INTEGER_MIN, INTEGER_MAX)


@st.composite
def entry_ranges(draw: st.DrawFn) -> EntryRange:
    first_index = draw(st.integers(0, INTEGER_MAX))
    return EntryRange(
        first_index,
        draw(st.integers(first_index, INTEGER_MAX)),
        draw(st.integers(0, INTEGER_MAX)),
        draw(st.binary(min_size=1, max_size=300)),
    )


ids = st.text(min_size=1, max_size=ID_CHARACTERS_MAX)
members = st.builds(
    Member,
    ids,
    st.text(max_size=HOST_CHARACTERS_MAX // 8),
    st.integers(0, 65535),
    st.sampled_from(MemberRole),
    st.none() | ids,
)


@st.composite
def configuration_entries(draw: st.DrawFn) -> ConfigurationEntry:
    voter = Member(draw(ids), "127.0.0.1", 1)
    others = draw(st.lists(members, max_size=VOTERS_MAX - 1, unique_by=lambda member: member.id))
    listed = (voter, *(other for other in others if other.id != voter.id))
    level, generation, term = (draw(st.integers(0, INTEGER_MAX)) for _ in range(3))
    return ConfigurationEntry(draw(integers), term, Configuration(listed, level, generation))


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return st.sampled_from(annotation)
    return {
        int: integers,
        bool: st.booleans(),
        str: st.text(max_size=TEXT_BYTES_MAX // 4),
        EntryRange: entry_ranges(),
        EntryRange | None: st.none() | entry_ranges(),
        ConfigurationEntry: configuration_entries(),
        ConfigurationEntry | None: st.none() | configuration_entries(),
    }[annotation]


def messages_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    annotations = typing.get_type_hints(cls)
    return st.builds(cls, **{name: values_of(annotation) for name, annotation in annotations.items()})


MESSAGE_TYPES: tuple[type[Any], ...] = (*typing.get_args(Handshake), *typing.get_args(Message))
messages: st.SearchStrategy[Any] = st.one_of([messages_of(cls) for cls in MESSAGE_TYPES])
