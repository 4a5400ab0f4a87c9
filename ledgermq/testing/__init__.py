"""Brokers for tests: one node (`broker`), a group of three whose nodes a test stops, pauses and cuts off
(`cluster`), and one node on the test's own event loop, whose clock the test moves (`in_process`).

    with ledgermq.testing.broker() as b:
        ...  # clients connect to b.namesrv

docs/testing_your_code.md describes them, and the fixtures of `ledgermq.pytest_plugin` that stand on them.
"""

from ledgermq.testing.in_loop import InProcessBroker, in_process
from ledgermq.testing.running import RunningBroker, RunningCluster, broker, cluster

__all__ = ["InProcessBroker", "RunningBroker", "RunningCluster", "broker", "cluster", "in_process"]
