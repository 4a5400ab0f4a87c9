"""Records and snapshots of the replicated state between the release before and this one: what is written
below the new format level is read alike by both, and everything else waits for that level.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from broker.state.access import AccessList, Action, Decision, PolicyEntry, PolicyType, Resource, User
from broker.state.changes import (
    Change,
    CommitOffsets,
    DeleteAccessList,
    DeleteGroup,
    DeleteTopic,
    DeleteUser,
    DropOffsets,
    EndWriter,
    LockQueues,
    PutAccessList,
    PutGroup,
    PutSettings,
    PutTopic,
    PutUser,
    SetDelayOffset,
    SetRequestMode,
    TrimLog,
    TrimQueues,
    encode_change,
    format_level_of,
    join_changes,
)
from broker.state.groups import EXPONENTIAL, GroupRetryPolicy, RequestMode, SubscriptionGroupConfig
from broker.state.snapshot import Snapshot, decode_snapshot, encode_snapshot
from broker.state.tables import StateTables
from broker.state.topics import TopicConfig
from dledger.core.membership import FIXED_MEMBERS_LEVEL
from tests.integration.client_runs import need
from tests.support.releases import Release, release

pytestmark = pytest.mark.integration
LIMIT_S = 60.0
NOW_MS = 1_700_000_000_000
ENTRY = PolicyEntry(Resource.parse("Topic:orders"), (Action.PUB,), Decision.ALLOW, ("10.0.0.0/8",))
SAMPLES: tuple[Change, ...] = (
    PutTopic(TopicConfig("orders", attributes={"message.type": "PRIORITY"}, is_ordered=True)),
    PutTopic(TopicConfig("bills", read_queue_nums=3, write_queue_nums=2, perm=4, topic_sys_flag=1)),
    PutGroup(SubscriptionGroupConfig("billing")),
    CommitOffsets("billing", "orders", {0: 5, 7: 2**60}),
    CommitOffsets("billing", "orders", {0: 3}, is_reset=True),
    SetDelayOffset(3, 17),
    TrimLog(4096),
    TrimQueues("orders", {0: 2}),
    PutSettings({"fileReservedTime": "48", "preferredLeaderId": "n1"}),
    LockQueues("billing", "c-1", {"orders": [0, 1]}),
    LockQueues("billing", "c-1", {"orders": [1]}, is_held=False),
    SetRequestMode(RequestMode("orders", "billing", "POP", 2)),
    EndWriter("writer", (0, 4)),
    DropOffsets("billing", "bills"),
    DeleteTopic("bills"),
    DeleteGroup("idle", clean_offsets=True),
    PutUser(User("ann", "encrypted")),
    PutAccessList(AccessList("ann", {PolicyType.CUSTOM: [ENTRY]})),
    DeleteAccessList("ann"),
    DeleteUser("ann"),
    PutGroup(SubscriptionGroupConfig("retrying", retry_policy=GroupRetryPolicy(kind=EXPONENTIAL))),
    PutSettings({"authenticationEnabled": "true"}),
    PutTopic(TopicConfig("exact", attributes={"read.consistency": "linearizable"})),
)
"""At least one of each kind, and of each field that is not always there."""
OLD_READER = """
import json, sys
from broker.state.changes import decode_changes, encode_change
from broker.state.snapshot import Snapshot, decode_snapshot, encode_snapshot
from broker.state.tables import StateTables
asked = json.load(sys.stdin)
answers = []
for body in asked["records"]:
    try:
        answers.append([json.loads(encode_change(change)) for change in decode_changes(bytes.fromhex(body))])
    except Exception as error:
        answers.append(type(error).__name__)
tables = StateTables({}, {})
tables.load_json(decode_snapshot(bytes.fromhex(asked["snapshot"])).tables)
rows = tables.to_json()
json.dump({"records": answers, "snapshot": encode_snapshot(Snapshot(9, rows)).hex()}, sys.stdout)
"""


def test_there_is_a_sample_of_each_kind_of_change() -> None:
    kinds = {each.__name__ for each in Change.__args__}
    assert {type(change).__name__ for change in SAMPLES} == kinds


@pytest.fixture(scope="module")
def old() -> Release:
    found = release("0.1.0")
    need("releases", found.is_installed, "run `scripts/setup releases`, which builds it from the history")
    return found


def ask_old(old: Release, folder: Path, records: list[bytes], snapshot: bytes) -> Any:
    """What the old release makes of them."""
    asked = json.dumps({"records": [record.hex() for record in records], "snapshot": snapshot.hex()})
    command = old.command("-c", OLD_READER)
    done = subprocess.run(
        command, input=asked, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tables_of(changes: list[Change]) -> StateTables:
    tables = StateTables({}, {})
    for change in changes:
        tables.apply(change, NOW_MS, 100)
    return tables


def test_below_the_new_level_both_releases_read_the_same(tmp_path: Path, old: Release) -> None:
    plain = [change for change in SAMPLES if format_level_of(change) <= FIXED_MEMBERS_LEVEL]
    tables = tables_of(plain).to_json()
    records = [join_changes([encode_change(change)]) for change in SAMPLES]
    answer = ask_old(old, tmp_path, records, encode_snapshot(Snapshot(9, tables)))
    for change, read in zip(SAMPLES, answer["records"], strict=True):
        is_same = read == [json.loads(encode_change(change))]
        if format_level_of(change) <= FIXED_MEMBERS_LEVEL:
            assert is_same, (change, read)
        elif not isinstance(change, PutSettings | PutTopic):  # it keeps their text, and does not obey it
            assert not is_same, f"{change} needs no level: the old release reads it"
    written = StateTables({}, {})
    written.load_json(decode_snapshot(bytes.fromhex(answer["snapshot"])).tables)
    assert json.loads(json.dumps(written.to_json())) == json.loads(json.dumps(tables))
