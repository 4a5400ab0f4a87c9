"""Histories of pushes, cuts and disks that broke replicated logs elsewhere, with every invariant checked."""

from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CompareRequest,
    CompareResponse,
    Message,
    TruncateRequest,
)
from dledger.core.types import EntryRange, ResponseCode, Role
from tests.simulation.script import Script, power_loss
from tests.support.memory_log import MemoryLog


def test_s5_truncation_below_the_commit_index_is_refused() -> None:
    """openmessaging/dledger#316: a truncated log must not end before its commit index."""
    script = Script()
    n0 = script.elect("n0")
    script.write("n0", 5)
    script.until_converged()
    n1 = script["n1"]
    commit_index, end = n1.node.commit_index, n1.store.entry(n1.node.end_index)
    assert end is not None
    for index in (0, commit_index):
        request = TruncateRequest(n0.node.term, commit_index, index, 0, 0, index == 0, end.index, end.term)
        n1.deliver("n0", request)
    script.run(100)
    assert (n1.node.commit_index, n1.node.end_index) == (commit_index, end.index)


def test_s5_node_whose_disk_ends_before_its_checkpoint_starts_and_is_filled() -> None:
    """openmessaging/dledger#316: a commit index beyond the end must not survive a restart."""
    script = Script()
    script.elect("n0")
    script.write("n0", 5)
    script.until_converged()
    n2 = script["n2"]
    n2.save_checkpoint()
    power_loss(n2)
    del n2.store.disk.entries[3:]
    n2.store.crash()
    n2.start()
    assert n2.node.commit_index == n2.node.end_index == 2
    script.write("n0")
    script.until_converged()


def test_s6_follower_down_longer_than_retention_begins_where_the_leader_begins() -> None:
    """rocketmq#1778: entries the leader removed are never asked for again; nothing loops."""
    script = Script()
    n0 = script.elect("n0")
    script.write("n0", 3)
    power_loss(script["n2"])
    script.write("n0", 20)
    n0.delete_before(n0.node.commit_index - 5)
    since = len(script.messages)
    script["n2"].start()
    script.until_converged()
    assert script["n2"].store.begin_index == n0.store.begin_index
    assert script.sent(CompareRequest, since) + script.sent(TruncateRequest, since) <= 6


def test_s7_wiped_follower_is_filled_by_an_idle_leader() -> None:
    """openmessaging/dledger#61: it must not wait for the next write."""
    script = Script()
    n0 = script.elect("n0")
    script.write("n0", 10)
    script.until_converged()
    n2 = script["n2"]
    term = n0.node.term
    power_loss(n2)
    n2.wipe()
    n2.start()
    script.until_converged(2_000)
    script.until(script.world.is_sound, "it votes again")
    assert n2.store.entries() == n0.store.entries()
    assert (n0.node.role, n0.node.term) == (Role.LEADER, term)


def test_s9_pushes_sent_again_after_lost_answers_are_harmless() -> None:
    """openmessaging/dledger#320: repeated and overlapping pushes cause no COMPARE storm."""
    script = Script(push_bytes_max=150)
    script.elect("n0")
    script.until_converged()
    script.drop(lambda sender, _to, message: sender == "n1" and isinstance(message, AppendResponse))
    for _ in range(5):
        script.write("n0", 3)
    since = len(script.messages)
    script.run(5_000)
    script.drop(None)
    script.write("n0", 3)
    script.until_converged(3_000)
    assert script.sent(CompareRequest, since) <= 2
    pushes = [m for _, to, m in script.messages[since:] if to == "n1" and isinstance(m, AppendRequest)]
    assert len(pushes) <= 30, "only the oldest unacknowledged push is sent again"


def test_s9_lost_push_costs_one_timeout_though_the_follower_keeps_few_early_ones() -> None:
    """What had no room is pushed again in order, not as the next hole, one time-out after the other."""
    script = Script(push_bytes_max=60, pending_pushes_max=5, out_of_order_pushes_max=1)
    script.elect("n0")
    script.until_converged()
    first_index = script["n0"].node.end_index + 1

    def is_first(_sender: str, to: str, message: Message) -> bool:
        is_push = isinstance(message, AppendRequest) and message.entries.first_index == first_index
        return is_push and to == "n1"

    script.drop(is_first)
    script.propose("n0", 100)
    script.run(100)
    script.drop(None)
    script.until_converged(2_000)


def test_s9_pushes_in_any_order_are_taken_once() -> None:
    script = Script(push_bytes_max=60)
    script.elect("n0")
    script.until_converged()
    held: list[Message] = []

    def hold(_sender: str, to: str, message: Message) -> bool:
        if to == "n1" and isinstance(message, AppendRequest):
            held.append(message)
            return True
        return False

    script.drop(hold)
    script.write("n0", 6)
    script.drop(None)
    assert len(held) >= 3
    for message in [*reversed(held), *held]:
        script["n1"].deliver("n0", message)
    since = len(script.messages)
    script.until_converged(2_000)
    assert script.sent(CompareRequest, since) == 0


def test_s15_idle_cluster_sends_beats_and_nothing_else() -> None:
    """openmessaging/dledger#122: ten idle minutes, without elections, and a turn only when one is due."""
    script = Script()
    script.elect("n0")
    script.until_converged()
    events, sent = script.world.events, script.world.network.sent
    script.run(600_000)
    beats = 600_000 // 250 * 2
    assert script.world.network.sent - sent <= 2 * beats + 100
    assert script.world.events - events <= 12 * beats
    assert script.leads("n0")


def test_s16_full_disk_on_the_leader_refuses_and_recovers() -> None:
    script = Script()
    n0 = script.elect("n0")
    n0.set_disk_full(True)
    assert script.world.workload.propose(n0, 1).code is ResponseCode.DISK_FULL
    n0.set_disk_full(False)
    script.write("n0")


def test_retention_while_a_lower_index_is_compared_starts_the_comparison_anew() -> None:
    """The answer to a COMPARE may speak of entries that the leader removed meanwhile."""
    script = Script()
    script.elect("n2")
    script.write("n2", 5)
    script.until_converged()
    script.isolate("n2")
    script.propose("n2", 3)
    n0 = script.elect("n0")
    script.write("n0", 20)
    held: list[CompareResponse] = []

    def hold(sender: str, _to: str, message: Message) -> bool:
        if isinstance(message, CompareResponse) and message.code is ResponseCode.SUCCESS:
            held.append(message)
            return True
        return False

    script.drop(hold)
    script.heal()
    script.until(lambda: bool(held), "n2 finds the common entry")
    n0.delete_before(n0.node.commit_index - 2)
    n0.deliver("n2", held[0])
    script.drop(None)
    script.until_converged()


def test_follower_that_doubted_its_leader_commits_what_it_had_acknowledged() -> None:
    """Back with the same leader in the same term, an idle one, it must not wait for the next write."""
    script = Script()
    n0 = script.elect("n0")
    script.until_converged()
    operation = script.propose("n0")
    n2 = script["n2"]
    script.until(lambda: n2.store.disk.end_index == operation.first_index, "n2 has the entry")
    n2.peer_disconnected("n0")
    script.until(lambda: n2.node.role is Role.CANDIDATE, "n2 doubts its leader")
    assert n2.node.commit_index < operation.first_index
    script.until_converged(2_000)
    assert n2.node.term == n0.node.term == 1


def test_answer_of_an_older_term_is_not_counted() -> None:
    """What a follower held for an earlier leadership says nothing of the entries of this one."""
    script = Script()
    n0 = script.elect("n0")
    script.until_converged()
    script.drop(lambda _, __, message: isinstance(message, AppendRequest))
    lost = script.propose("n0")
    script.run(100)
    stale = AppendResponse(n0.node.term - 1, ResponseCode.SUCCESS, 0, lost.first_index, lost.first_index)
    n0.deliver("n1", stale)
    script.run(100)
    assert n0.node.commit_index < lost.first_index


def entry_of(index: int, term: int, position: int) -> EntryRange:
    """An entry some other leader might have made."""
    log = MemoryLog()
    log.reset(index, position)
    log.append_bodies(index, term, [b"of another history"])
    return log.read_range(index, index, 1 << 20)


def test_push_after_an_entry_the_follower_does_not_have_is_refused() -> None:
    """Raft 5.3: the entry before the push must be of the term the leader says."""
    script = Script()
    n0 = script.elect("n0")
    script.write("n0", 3)
    script.until_converged()
    n1, term = script["n1"], n0.node.term
    entries = entry_of(n1.node.end_index + 1, term, n1.store.end_position)
    end_index = n1.node.end_index
    n1.deliver("n0", AppendRequest(term, end_index, term - 1, entries))
    since = len(script.messages)
    script.run(100)
    assert n1.node.end_index == end_index
    codes = [m.code for _, _, m in script.messages[since:] if isinstance(m, AppendResponse)]
    assert codes == [ResponseCode.INCONSISTENT_STATE]


def test_push_of_other_entries_than_the_follower_has_is_refused() -> None:
    """Raft 5.3: same index, other term, so it must not be acknowledged as a repeated push."""
    script = Script()
    n0 = script.elect("n0")
    script.write("n0", 3)
    script.until_converged()
    n1, term = script["n1"], n0.node.term
    index = n1.node.end_index
    entries = entry_of(index, term - 1, n1.store.position_of(index))
    n1.deliver("n0", AppendRequest(term, index, term - 1, entries))
    since = len(script.messages)
    script.run(100)
    codes = [m.code for _, _, m in script.messages[since:] if isinstance(m, AppendResponse)]
    assert codes == [ResponseCode.INCONSISTENT_STATE]
