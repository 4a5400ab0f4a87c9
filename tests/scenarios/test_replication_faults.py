"""Faults of DLedger that need a whole group, each named after the report, with every invariant checked."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import pairwise

from dledger.core.messages import AppendRequest, CompareRequest, TruncateRequest
from dledger.core.types import ResponseCode
from tests.simulation.host import Host
from tests.simulation.script import Script, power_loss


def test_dl275_group_is_available_when_the_majority_needs_what_the_leader_removed() -> None:
    """openmessaging/dledger#275: two of five are away longer than the retention, then two others die."""
    script = Script(nodes=5)
    n0 = script.elect("n0")
    first = script.write("n0", 3)
    power_loss(script["n3"], script["n4"])
    second = script.write("n0", 20)
    n0.delete_before(n0.node.commit_index - 2)
    power_loss(script["n1"], script["n2"])
    since = len(script.messages)
    script["n3"].start()
    script["n4"].start()
    script.until(lambda: script.world.leader() is not None, "a leader")
    script.elect("n0")
    third = script.write("n0", 3)
    assert third.first_index > second.first_index > first.first_index
    assert {script[name].store.begin_index for name in ("n3", "n4")} == {n0.store.begin_index}
    assert script.sent(CompareRequest, since) + script.sent(TruncateRequest, since) <= 12
    script["n1"].start()
    script["n2"].start()
    script.until_converged()


def waiting(host: Host) -> dict[str, int]:
    """What a node keeps for somebody else, by the table it stands in."""
    node = host.node
    tables = {"pushes": len(node._handler._waiting), "bytes of pushes": node._handler._waiting_bytes}
    leadership = node._leadership
    if leadership is not None:
        tables["appends"] = len(leadership.appends._waiting)
        for peer, dispatcher in leadership.dispatchers.items():
            tables[f"pushes to {peer}"] = len(dispatcher._pending)
    return tables


def lose_every_third_push(script: Script) -> None:
    numbers = itertools.count()
    script.drop(lambda _from, _to, message: isinstance(message, AppendRequest) and not next(numbers) % 3)


def test_dl309_nothing_is_kept_of_pushes_and_appends_once_they_are_over() -> None:
    """openmessaging/dledger pull request 309: a follower's closures were never removed."""
    script = Script()
    seen: Counter[str] = Counter()
    for name, following in pairwise(["n0", "n1", "n2", "n0", "n1"]):
        script.elect(name)
        script.heal()
        script.until_converged()
        lose_every_third_push(script)
        for _ in range(30):
            script.propose(name)
            script.run(3)
            seen.update(
                kind.split()[0] for host in script.hosts.values() for kind, n in waiting(host).items() if n
            )
        script.drop(None)
        script.until_converged()
        script.let_only(following)
        script.isolate(name)
        given_up = script.propose(name, 5)
        script.until(lambda given_up=given_up: given_up.code is not None, "an answer")  # type: ignore[misc]
        assert given_up.code is not ResponseCode.SUCCESS
    script.let_only(None)
    assert seen.keys() == {"pushes", "bytes", "appends"}
    script.heal()
    script.until_converged()
    script.run(5_000)
    for host in script.hosts.values():
        assert not any(waiting(host).values()), (host.name, waiting(host))
