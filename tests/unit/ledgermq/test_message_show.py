"""What two answers make up is shown also where the second is not to be had."""

import pytest

from admin_api.messages.views import BodyFormat, BodyView, MessageView
from tests.unit.ledgermq.fake_admin import Asked, as_json, serving
from tests.unit.ledgermq.running import CommandLine

MESSAGE_ID = "7F00000100002A9F0000000000000400"
SILENT = "Nobody who knows the groups' offsets gives an answer."
MESSAGE = MessageView(
    id=MESSAGE_ID,
    unique_key=None,
    topic="orders",
    broker_name="broker-a",
    queue_id=0,
    queue_offset=7,
    born_at_ms=1_767_225_600_000,
    stored_at_ms=1_767_225_600_001,
    stored_bytes=4,
    position=1024,
    born_host="127.0.0.1:5000",
    store_host="127.0.0.1:10911",
    flag=0,
    sys_flag=0,
    prepared_transaction_offset=0,
    body_crc=1,
    is_crc_right=True,
    properties={},
    body=BodyView(
        format=BodyFormat.TEXT, content="body", body_bytes=4, stored_bytes=4, is_text=True, is_body_cut=False
    ),
)


def without_track(asked: Asked) -> tuple[int, bytes]:
    if asked.target.partition("?")[0].endswith("/track"):
        return as_json(503, {"title": "Service Unavailable", "status": 503, "detail": SILENT})
    return as_json(200, MESSAGE.model_dump(mode="json", by_alias=True))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def test_message_whose_track_nobody_tells_is_shown_and_its_track_is_unknown(run: CommandLine) -> None:
    with serving(without_track) as admin:
        shown = run("message", "show", MESSAGE_ID, "--admin", admin.url)
        told = run("message", "show", MESSAGE_ID, "--admin", admin.url, "--json")
    assert (shown.code, told.code) == (3, 3), "a part of it is missing"
    assert "offset 7" in shown.out
    assert "consumed by\n  unknown" in shown.out
    assert SILENT in shown.err
    assert (told.json["queueOffset"], told.json["track"], told.json["isPartial"]) == (7, None, True)
    assert [problem["address"] for problem in told.json["problems"]] == ["track"]
    assert SILENT in told.json["problems"][0]["problem"]


TOPIC = {
    "name": "orders",
    "kind": "normal",
    "configs": [],
    "consumerGroups": [],
    "problems": [],
    "isPartial": False,
}


def test_topic_whose_queues_nobody_tells_is_shown(run: CommandLine) -> None:
    silent = {"title": "Service Unavailable", "status": 503, "detail": SILENT}

    def answer(asked: Asked) -> tuple[int, bytes]:
        return as_json(503, silent) if asked.target.endswith("/queues") else as_json(200, TOPIC)

    with serving(answer) as admin:
        shown = run("topic", "show", "orders", "--admin", admin.url)
        told = run("topic", "show", "orders", "--admin", admin.url, "--json")
    assert (shown.code, "unknown messages\n  unknown" in shown.out) == (3, True)
    assert (told.json["queues"], told.json["messageCount"], told.json["isPartial"]) == (None, None, True)


def test_message_that_is_not_there_is_no_partial_answer(run: CommandLine) -> None:
    absent = {"title": "Not Found", "status": 404, "detail": "No message has this id."}
    with serving(lambda _: as_json(404, absent)) as admin:
        ran = run("message", "show", MESSAGE_ID, "--admin", admin.url)
    assert (ran.code, ran.out) == (1, "")
    assert "No message has this id." in ran.err
