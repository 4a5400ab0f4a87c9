"""admin_api.cluster.history: samples of the cluster view and of one answer of each leader."""

from admin_api.cluster.history import History
from admin_api.cluster.reader import Answer, Memory, assemble
from admin_api.cluster.schemas import ClusterView, NamesrvView, NodeState
from admin_api.gateway import AskError
from admin_api.settings import Settings
from admin_api.sources.broker_admin import Runtime
from broker.admin.types import NodeRole
from tests.unit.admin_api.node_samples import ADDRESSES, listed, node_status, peer

NAMESRV = NamesrvView(address="127.0.0.1:9876", state=NodeState.UP)


class Bench:
    """A cluster whose figures are set by hand, and a history that samples it on demand."""

    def __init__(self, keep_ms: int = 3_600_000, groups_max: int = 64) -> None:
        self.now_s = 0.0
        self.leader = "n0"
        self.is_gone = False
        self.figures: dict[str, str] | None = {
            "bootTimestamp": "1",
            "msgPutTotalTodayNow": "0",
            "msgGetTotalTodayNow": "0",
        }
        self.asked: list[str] = []
        settings = Settings(
            "127.0.0.1:9876",
            history_interval_ms=5_000,
            history_keep_ms=keep_ms,
            history_groups_max=groups_max,
        )
        self.history = History(self.look, self.read_runtime, settings, lambda: self.now_s)

    async def look(self) -> ClusterView:
        if self.is_gone:
            return assemble([NAMESRV], (), {}, Memory(8), int(self.now_s * 1000))
        follower = next(node_id for node_id in ADDRESSES if node_id != self.leader)
        behind = peer(follower, lag_entries=3, lag_ms=700, match_index=6, is_connected=True)
        status = node_status(self.leader, NodeRole.LEADER, peers=(behind,))
        answer = Answer(ADDRESSES[self.leader], status)
        memory = Memory(8)
        return assemble(
            [NAMESRV], listed(self.leader), {answer.address: answer}, memory, int(self.now_s * 1000)
        )

    async def read_runtime(self, address: str) -> Runtime:
        self.asked.append(address)
        if self.figures is None:
            raise AskError(address, "silent")
        return Runtime(dict(self.figures))

    async def sample(self, after_s: float = 5.0, **figures: str) -> None:
        self.now_s += after_s
        if self.figures is not None:
            self.figures |= figures
        await self.history.sample()


async def test_rates_are_what_came_between_two_samples() -> None:
    bench = Bench()
    await bench.sample(msgPutTotalTodayNow="100", msgGetTotalTodayNow="40")
    await bench.sample(5.0, msgPutTotalTodayNow="600", msgGetTotalTodayNow="50", putLatency99="1.25")
    (group,) = bench.history.view().groups
    first, second = group.samples
    assert (first.put_per_s, first.get_per_s, first.put_p99_ms) == (None, None, None)
    assert (second.put_per_s, second.get_per_s, second.put_p99_ms) == (100.0, 2.0, 1.25)
    assert (second.leader_id, second.lag_entries, second.lag_ms) == ("n0", {"n1": 3}, {"n1": 700})
    assert bench.asked == [ADDRESSES["n0"]] * 2


async def test_a_new_leader_and_a_restart_leave_a_gap() -> None:
    bench = Bench()
    await bench.sample(msgPutTotalTodayNow="100")
    bench.leader = "n1"
    await bench.sample(msgPutTotalTodayNow="900")
    await bench.sample(msgPutTotalTodayNow="950")
    await bench.sample(msgPutTotalTodayNow="10", bootTimestamp="2")
    (group,) = bench.history.view().groups
    assert [sample.put_per_s for sample in group.samples] == [None, None, 10.0, None]


async def test_a_silent_leader_is_unknown_and_not_nought() -> None:
    bench = Bench()
    await bench.sample(msgPutTotalTodayNow="100")
    bench.figures = None
    await bench.sample()
    (group,) = bench.history.view().groups
    assert group.samples[1].put_per_s is None
    assert group.samples[1].lag_ms == {"n1": 700}, "the cluster view still knows it"


async def test_only_the_last_hour_is_kept_and_what_is_new_can_be_asked_for() -> None:
    bench = Bench(keep_ms=15_000)
    for _ in range(5):
        await bench.sample()
    (group,) = bench.history.view().groups
    assert [sample.at_ms for sample in group.samples] == [15_000, 20_000, 25_000]
    (newer,) = bench.history.view(since_ms=20_000).groups
    assert [sample.at_ms for sample in newer.samples] == [25_000]


async def test_a_name_that_is_gone_is_a_gap_and_then_forgotten() -> None:
    bench = Bench(keep_ms=15_000)
    await bench.sample(msgPutTotalTodayNow="100")
    await bench.sample(msgPutTotalTodayNow="200")
    bench.is_gone = True
    await bench.sample()
    (group,) = bench.history.view().groups
    assert [sample.at_ms for sample in group.samples] == [5_000, 10_000, 15_000]
    gap = group.samples[2]
    assert (gap.leader_id, gap.put_per_s, gap.get_per_s, gap.put_p99_ms) == (None, None, None, None)
    assert (gap.lag_entries, gap.lag_ms) == ({}, {})
    await bench.sample()
    await bench.sample()
    assert bench.history.view().groups == [], "nothing of the last hour is left to be shown"
    bench.is_gone = False
    await bench.sample(msgPutTotalTodayNow="900")
    await bench.sample(msgPutTotalTodayNow="950")
    (group,) = bench.history.view().groups
    assert [sample.put_per_s for sample in group.samples] == [None, 10.0], "not what came while it was gone"


async def test_samples_older_than_the_hour_go_also_when_few_were_taken() -> None:
    bench = Bench(keep_ms=15_000)
    await bench.sample()
    await bench.sample(after_s=60.0)
    (group,) = bench.history.view().groups
    assert [sample.at_ms for sample in group.samples] == [65_000]


async def test_a_name_of_which_nothing_is_known_takes_no_place() -> None:
    bench = Bench(groups_max=1)
    bench.figures = None
    seen = Memory(8)
    seen.remember(node_status("n0", NodeRole.LEADER), 0)
    silent = {ADDRESSES["n0"]: Answer(ADDRESSES["n0"], None, "silent")}

    async def look() -> ClusterView:
        return assemble([NAMESRV], listed("n0"), silent, seen, 1_000)

    history = History(look, bench.read_runtime, Settings("127.0.0.1:9876"))
    await history.sample()
    assert history.view().groups == []


async def test_a_name_that_goes_before_it_says_anything_leaves_no_reading_behind() -> None:
    bench = Bench()

    stock = {ADDRESSES["n0"]: Answer(ADDRESSES["n0"], None, is_stock=True)}

    async def look() -> ClusterView:
        there = () if bench.is_gone else listed("n0")
        return assemble([NAMESRV], there, stock, Memory(8), int(bench.now_s * 1000))

    history = History(look, bench.read_runtime, Settings("127.0.0.1:9876"), lambda: bench.now_s)
    await history.sample()
    assert history.view().groups == [], "one reading gives no rate"
    bench.is_gone, bench.now_s = True, 5.0
    await history.sample()
    bench.is_gone, bench.now_s = False, 10.0
    bench.figures = {"bootTimestamp": "1", "msgPutTotalTodayNow": "900", "msgGetTotalTodayNow": "0"}
    await history.sample()
    assert history.view().groups == [], "what came while it was gone is no rate"
    bench.now_s, bench.figures["msgPutTotalTodayNow"] = 15.0, "950"
    await history.sample()
    assert [sample.put_per_s for sample in history.view().groups[0].samples] == [10.0]


async def test_no_more_names_than_allowed_are_sampled() -> None:
    bench = Bench(groups_max=0)
    await bench.sample()
    assert bench.history.view().groups == []
    assert bench.asked == []
