"""What pytest loads of LedgerMQ in every run, and what its fixtures give to tests."""

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import ledgermq.testing
from ledgermq.local.plan import Scalar
from ledgermq.testing import RunningBroker, RunningCluster

ROOT = Path(__file__).resolve().parents[4]
PLUGIN = "ledgermq.pytest_plugin"
OURS = ("admin_api", "broker", "commitlog", "dledger", "namesrv", "native", "remoting", "sockets")

pytest_plugins = ["pytester"]


class FakeBroker(RunningBroker):
    """Has names, and no process."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(cast("Any", None), cast("Any", None), cast("Any", None))
        self.log = log


class FakeCluster(FakeBroker, RunningCluster):
    def restore(self) -> None:
        self.log.append("restored")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the fixtures have started, restored and stopped."""
    log: list[str] = []

    def starting(kind: type[FakeBroker]) -> Callable[..., AbstractContextManager[FakeBroker]]:
        @contextmanager
        def start(*, settings: Mapping[str, Scalar]) -> Iterator[FakeBroker]:
            log.append(f"start {kind.__name__} {dict(settings)}")
            yield kind(log)
            log.append(f"stop {kind.__name__}")

        return start

    monkeypatch.setattr(ledgermq.testing, "broker", starting(FakeBroker))
    monkeypatch.setattr(ledgermq.testing, "cluster", starting(FakeCluster))
    return log


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """With the plugin once, whether its entry point is installed or not."""
    return pytester.runpytest_inprocess("-p", "no:ledgermq", "-p", "no:asyncio", "-p", PLUGIN, *options)


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"ledgermq": PLUGIN}
    assert any(each.startswith("pytest") for each in project["optional-dependencies"]["testing"])


def test_it_imports_nothing_of_ours_before_a_fixture_is_used() -> None:
    program = f"import sys, {PLUGIN}; print(*(name for name in sys.modules if not name.startswith('_')))"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = result.stdout.split()
    assert {name for name in loaded if name.split(".")[0] == "ledgermq"} == {"ledgermq", PLUGIN}
    assert [name for name in loaded if name.split(".")[0] in OURS] == []


def test_the_fixtures_are_listed_with_what_they_are(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--fixtures")
    result.stdout.fnmatch_lines(["ledgermq -- *", "*A running broker*", "ledgermq_cluster -- *"])


def test_one_broker_for_the_session_and_topics_for_each_test(
    pytester: pytest.Pytester, log: list[str]
) -> None:
    pytester.makepyfile("""
        names = []
        def test_one(ledgermq):
            names.extend([ledgermq.topic("orders"), ledgermq.group("orders")])
            assert names == [ledgermq.topic("orders"), ledgermq.group("orders")]
        def test_two(ledgermq):
            assert ledgermq.topic("orders").endswith("orders")
            assert ledgermq.topic("orders") not in names
    """)
    run(pytester).assert_outcomes(passed=2)
    assert log == ["start FakeBroker {}", "stop FakeBroker"]


def test_the_cluster_is_whole_before_each_test(pytester: pytest.Pytester, log: list[str]) -> None:
    pytester.makepyfile("""
        def test_one(ledgermq_cluster): pass
        def test_two(ledgermq_cluster): pass
        def test_without(): pass
    """)
    run(pytester).assert_outcomes(passed=3)
    assert log == ["start FakeCluster {}", "restored", "restored", "stop FakeCluster"]


def test_a_conftest_gives_settings(pytester: pytest.Pytester, log: list[str]) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(scope="session")
        def ledgermq_settings():
            return {"topicsMax": 7}
    """)
    pytester.makepyfile("def test_one(ledgermq, ledgermq_cluster): pass")
    run(pytester).assert_outcomes(passed=1)
    assert log[:2] == ["start FakeBroker {'topicsMax': 7}", "start FakeCluster {'topicsMax': 7}"]


def test_without_a_use_nothing_starts(pytester: pytest.Pytester, log: list[str]) -> None:
    pytester.makepyfile("def test_one(): pass")
    run(pytester).assert_outcomes(passed=1)
    assert log == []
