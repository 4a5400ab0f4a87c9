"""What watch shows, look by look."""

import copy
import io
import os
import pty
from typing import Any

from rich.console import Console

from admin_api.cluster.examples import CLUSTER_EXAMPLE
from ledgermq.watch_view import BAR_CELLS, Keys, Pace, Snapshot, Watched, bar

GROUPS: dict[str, Any] = {
    "total": 1,
    "items": [{"group": "billing", "presence": "online", "members": 2, "lag": 70, "consumeTps": 3.5}],
}


def shown(watched: Watched, look: Snapshot, at_s: float, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(watched.picture(look, at_s, 1_700_000_000_000, "q ends"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_rates_come_from_two_looks() -> None:
    watched = Watched()
    view, groups = copy.deepcopy(CLUSTER_EXAMPLE), copy.deepcopy(GROUPS)
    first = shown(watched, Snapshot({"cluster": view, "groups": groups}, ()), 10.0)
    assert "broker-a: writable, n1 leads, term 4" in first
    assert "entries/s" not in first
    for node in view["groups"][0]["nodes"]:
        if node["log"]["committedIndex"] is not None:
            node["log"]["committedIndex"] += 500
    groups["items"][0]["lag"] = 50
    second = shown(watched, Snapshot({"cluster": view, "groups": groups}, ()), 12.0)
    assert "250 entries/s committed" in second
    (row,) = [line for line in second.splitlines() if "billing" in line]
    assert row.split() == ["billing", "online", "2", "50", "-10.00", "3.50"]


def test_a_look_at_which_nobody_answers_has_no_rate_and_nor_has_the_one_after_it() -> None:
    watched, view = Watched(), copy.deepcopy(CLUSTER_EXAMPLE)
    silent = copy.deepcopy(view)
    for node in silent["groups"][0]["nodes"]:
        node["log"]["committedIndex"] = None
    looks = [view, silent, view, view]
    texts = [
        shown(watched, Snapshot({"cluster": look}, ()), at_s) for at_s, look in enumerate(looks, start=1)
    ]
    assert ["entries/s" in text for text in texts] == [False, False, False, True]
    assert "0 entries/s committed" in texts[3]


def test_what_nobody_said_is_unknown_and_why_is_told() -> None:
    text = shown(
        Watched(), Snapshot({"cluster": CLUSTER_EXAMPLE}, ("The name server gives no answer.",)), 1.0
    )
    (dead,) = [line for line in text.splitlines() if line.split()[:2] == ["n0", "down"]]
    assert dead.split().count("?") >= 3
    assert "term 4: n1 elected" in text
    assert text.rstrip().endswith("The name server gives no answer.")


def test_a_bar_shows_what_is_committed_and_what_only_written() -> None:
    log = {"beginIndex": 0, "committedIndex": 50, "endIndex": 75}
    assert bar({"log": log, "top": 100}) == ("=" * (BAR_CELLS // 2) + "-" * (BAR_CELLS // 4)).ljust(BAR_CELLS)
    assert bar({"log": {**log, "endIndex": None}, "top": 100}) == ""
    assert bar({"log": {**log, "committedIndex": 10**9, "endIndex": 10**9}, "top": 100}) == "=" * BAR_CELLS


def test_a_narrow_terminal_shortens_the_bar_and_folds_no_line() -> None:
    look = Snapshot({"cluster": CLUSTER_EXAMPLE}, ())
    lines = [line.split() for line in shown(Watched(), look, 1.0, width=80).splitlines()]
    head = next(at for at, words in enumerate(lines) if words[:2] == ["node", "state"])
    rows = lines[head + 2 : head + 6]
    assert [words[:1] for words in rows] == [["n0"], ["n1"], ["n2"], []]
    bars = [words[2] for words in rows[1:3]]
    assert all(0 < len(drawn) < BAR_CELLS and set(drawn) <= {"=", "-"} for drawn in bars)


def test_a_clock_that_stands_still_gives_no_rate() -> None:
    pace = Pace()
    assert pace.rates({"a": 1}, 5.0) == {}
    assert pace.rates({"a": 2}, 5.0) == {}
    assert pace.rates({"a": 4, "b": 1}, 6.0) == {"a": 2.0}


def test_keys_come_one_by_one() -> None:
    leader, follower = pty.openpty()
    with (
        os.fdopen(leader, "wb", buffering=0) as person,
        os.fdopen(follower) as terminal,
        Keys(terminal) as keys,
    ):
        assert keys.wait(0) is None
        person.write(b"q")
        assert keys.wait(10) == "q"


def test_a_stock_broker_is_up_and_said_to_tell_nothing_of_replication() -> None:
    log = dict.fromkeys(("beginIndex", "endIndex", "persistedIndex", "committedIndex", "appliedIndex"))
    node = dict.fromkeys(("id", "role", "impairment", "term", "lagEntries", "lagMs", "problem"))
    node |= {"state": "up", "isLedgermq": False, "remotingAddress": "10.0.0.9:10911", "log": log}
    group = {"group": "stock", "state": "writable", "leaderId": None, "nodes": [node], "elections": None}
    view = {"groups": [group], "namesrv": {"address": "10.0.0.9:9876", "problem": None}}
    text = shown(Watched(), Snapshot({"cluster": view}, ()), 1.0)
    assert "stock: writable, a stock RocketMQ broker, which reports nothing about replication" in text
    assert "up, stock" in text
    assert "leads" not in text


def test_every_silent_name_server_is_named() -> None:
    silent = [{"address": f"10.0.0.{n}:9876", "problem": f"10.0.0.{n}:9876 is gone"} for n in (1, 2)]
    view = {"groups": [], "namesrv": silent[0], "namesrvs": [*silent, {"address": "h:1", "problem": None}]}
    text = shown(Watched(), Snapshot({"cluster": view}, ()), 1.0)
    assert text.count("name server: 10.0.0.") == 2
