"""A person who types fast over a real admin service does not meet its bounds, or waits for them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import uvicorn

from admin_api.app import create_app
from admin_api.cluster.examples import CLUSTER_EXAMPLE
from admin_api.messages.views import id_of
from admin_api.security.rates import RateLimit
from admin_api.settings import Settings
from ledgermq import api_client
from ledgermq.calls import Call
from ledgermq.watch_view import poller
from tests.integration.waiting import wait_for
from tests.unit.admin_api.fake_messages import NAMESRV, FakeMessages
from tests.unit.admin_api.message_bench import one_broker
from tests.unit.ledgermq.fake_admin import Answer, Asked, as_json, serving
from tests.unit.ledgermq.running import CommandLine

LIMIT_S = 20.0
COMMANDS = 50
"""Five a second for ten seconds."""
QUERIES_OF_ONE = 6
"""More expensive ones than any command makes."""
Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@contextmanager
def served(cluster: FakeMessages, **limits: Any) -> Iterator[str]:
    """The address of a service over it, in a thread."""
    app = create_app(Settings(namesrv=NAMESRV, **limits), cluster)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for("the admin service", lambda: server.started, LIMIT_S)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)


@pytest.fixture
def message() -> tuple[FakeMessages, str]:
    """A cluster of one message, and its id."""
    cluster, store = one_broker()
    cluster.topics = {"T": 1}
    return cluster, id_of(store.put("T"))


@pytest.fixture
def unwaiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long commands would have waited; they go on at once."""
    waits: list[float] = []
    monkeypatch.setattr(api_client, "sleep", waits.append)
    return waits


def test_five_commands_a_second_stay_below_the_bound() -> None:
    now_s = [0.0]
    settings = Settings(namesrv=NAMESRV)
    limit = RateLimit(settings.costly_burst, settings.costly_per_s, now_s=lambda: now_s[0])
    for _ in range(20 * COMMANDS):
        assert [limit.acquire("a") for _ in range(QUERIES_OF_ONE)] == [0.0] * QUERIES_OF_ONE
        now_s[0] += 0.2


def test_commands_one_after_the_other_are_all_answered(
    run: CommandLine, message: tuple[FakeMessages, str], unwaiting: list[float]
) -> None:
    cluster, message_id = message
    with served(cluster) as url:
        ran = [run("message", "show", message_id, "--topic", "T", "--admin", url) for _ in range(COMMANDS)]
    assert [each for each in ran if each.code != 0 or "too many" in (each.out + each.err).lower()] == []
    assert unwaiting == [], "the service asked for no pause"


def test_command_waits_where_the_service_is_busy(run: CommandLine, message: tuple[FakeMessages, str]) -> None:
    cluster, message_id = message
    with served(cluster, costly_burst=1, costly_per_s=5.0) as url:
        shown = [run("message", "show", message_id, "--topic", "T", "--admin", url) for _ in range(2)]
        well = run("doctor", "--json", "--admin", url)
    assert [each.code for each in shown] == [0, 0]
    assert [each.out.rpartition("consumed by")[2].strip() for each in shown] == ["none"] * 2
    assert "lookedAt" in well.json


def refused(retry_after: str | None, detail: str = "Too many expensive queries.") -> Answer:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return *as_json(429, {"title": "Too Many Requests", "detail": detail}), headers


def test_look_of_watch_is_whole_where_its_service_was_busy(run: CommandLine, unwaiting: list[float]) -> None:
    page = {"items": [], "total": 0, "problems": [], "isPartial": False}

    def answer(asked: Asked) -> Answer:
        if len(admin.asked) % 2:
            return refused("1")
        return as_json(200, CLUSTER_EXAMPLE if asked.target.endswith("/cluster") else page)

    with serving(answer) as admin:
        ran = run("watch", "--json", "--admin", admin.url)
    assert (ran.code, ran.json["problems"], unwaiting) == (0, [], [1, 1, 1])


def test_a_change_is_sent_again_and_made_once(run: CommandLine, unwaiting: list[float]) -> None:
    made = {"action": "topic.delete", "target": "T", "effects": [], "outcomes": [], "warnings": []}
    answers = [refused("2"), refused("3"), as_json(200, {**made, "isDryRun": False, "isPartial": False})]
    with serving(lambda _: answers.pop(0)) as admin:
        ran = run("topic", "delete", "T", "--yes", "--admin", admin.url)
    assert (ran.code, ran.err, unwaiting) == (0, "", [2, 3])
    assert len({(asked.method, asked.target) for asked in admin.asked}) == 1


@pytest.mark.parametrize(
    ("retry_after", "waits", "said"),
    [
        ("60", [], "Too many expensive queries. Try again in 60 s: a command waits 5 s at most by itself."),
        (None, [], "Too many expensive queries. Try again later."),
        ("Wed, 21 Oct 2065 07:28:00 GMT", [], "Too many expensive queries. Try again later."),
        ("-1", [], "Too many expensive queries. Try again later."),
        ("9" * 5000, [], "Too many expensive queries. Try again later."),
        ("0", [1] * 15, "It was still busy after 15 s of waiting: try again later."),
        ("5", [5, 5, 5], "It was still busy after 15 s of waiting: try again later."),
        ("4", [4, 4, 4], "It was still busy after 12 s of waiting: try again later."),
    ],
)
def test_no_command_waits_for_long(
    run: CommandLine, unwaiting: list[float], retry_after: str | None, waits: list[float], said: str
) -> None:
    with serving(lambda _: refused(retry_after)) as admin:
        ran = run("doctor", "--admin", admin.url)
    assert (ran.code, ran.out, unwaiting) == (1, "", waits)
    assert ran.err.startswith("error: Too many")
    assert said in ran.err


def test_refusal_without_json_is_told(run: CommandLine, unwaiting: list[float]) -> None:
    with serving(lambda _: (429, b"<html>", {"Retry-After": "90"})) as admin:
        ran = run("doctor", "--admin", admin.url)
    assert (ran.code, unwaiting) == (1, [])
    assert ran.err == "error: Too many requests. Try again in 90 s: a command waits 5 s at most by itself.\n"


def test_all_parts_of_a_command_share_the_wait(
    run: CommandLine, unwaiting: list[float], message: tuple[FakeMessages, str]
) -> None:
    """The second part is shown as missing, and the whole has waited no longer than one part may."""

    def answer(asked: Asked) -> Answer:
        if asked.target.endswith("/queues") or len(admin.asked) < 3:
            return refused("5")
        topic = {"name": "T", "kind": "normal", "configs": [], "consumerGroups": []}
        return as_json(200, {**topic, "problems": [], "isPartial": False})

    with serving(answer) as admin:
        ran = run("topic", "show", "T", "--admin", admin.url)
    assert (ran.code, unwaiting) == (3, [5, 5, 5])
    assert "It was still busy after 15 s" in ran.err


def test_each_look_has_its_own_wait(unwaiting: list[float]) -> None:
    with serving(lambda _: refused("5")) as admin, poller(Call(admin=admin.url)) as look:
        looks = [look(), look()]
    assert unwaiting == [5, 5, 5] * 2
    assert all("It was still busy" in seen.problems[0] for seen in looks)
