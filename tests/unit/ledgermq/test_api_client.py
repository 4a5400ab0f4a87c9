"""Calls over HTTP: what is sent, and what the answers become."""

import pytest

from ledgermq import api_client
from ledgermq.api_client import ApiClient, ProblemAnswerError
from ledgermq.calls import path_of
from ledgermq.errors import UserError
from tests.unit.ledgermq.fake_admin import as_json, serving


def test_names_are_quoted_and_a_list_is_a_name_several_times() -> None:
    with serving(lambda _: as_json(200, {"a": 1})) as admin:
        client = ApiClient(f"{admin.url}/below/", "secret")
        query: dict[str, object] = {"name": None, "kind": ["dlq", "retry"], "dryRun": True}
        assert client.call("GET", path_of("topics", "%DLQ%a/b ä"), query) == {"a": 1}
        client.call("POST", "/topics", body={"name": "T"})
    read, changed = admin.asked
    assert read.target == "/below/api/v1/topics/%25DLQ%25a%2Fb%20%C3%A4?kind=dlq&kind=retry&dryRun=true"
    assert read.headers["authorization"] == "Bearer secret"
    assert "x-ledgermq-request" not in read.headers
    assert changed.headers["x-ledgermq-request"] == "1"
    assert (changed.method, changed.body) == ("POST", {"name": "T"})


@pytest.mark.parametrize(("status", "exit_code"), [(404, 1), (422, 2), (400, 2), (503, 1), (403, 1)])
def test_a_problem_is_its_sentence(status: int, exit_code: int) -> None:
    problem = {"title": "No", "detail": "The topic T does not exist.", "result": {"effects": []}}
    with serving(lambda _: as_json(status, problem)) as admin, pytest.raises(ProblemAnswerError) as raised:
        ApiClient(admin.url, "secret").call("GET", "/topics/T")
    assert str(raised.value) == "The topic T does not exist."
    assert (raised.value.status, raised.value.exit_code) == (status, exit_code)
    assert raised.value.result == {"effects": []}


def test_what_is_no_admin_service_is_told() -> None:
    with (
        serving(lambda _: (200, b"<html>")) as admin,
        pytest.raises(UserError, match="answered 200 without JSON"),
    ):
        ApiClient(admin.url).call("GET", "/cluster")
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1 gives no answer: Connection refused\."):
        ApiClient("http://name:pass@127.0.0.1:1").call("GET", "/cluster")


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://[::1"])
def test_a_url_that_is_none_is_wrong_usage(url: str) -> None:
    with pytest.raises(UserError, match="--admin must be a URL") as raised:
        ApiClient(url).call("GET", "/cluster")
    assert raised.value.exit_code == 2


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client, "ANSWER_BYTES_MAX", 100)
    with (
        serving(lambda _: (200, b'"' + b"x" * 200 + b'"')) as admin,
        pytest.raises(UserError, match="more than 100"),
    ):
        ApiClient(admin.url).call("GET", "/cluster")


def test_text_is_text_and_a_refusal_of_it_a_sentence() -> None:
    with serving(lambda _: (200, b"{}\n{}\n")) as admin:
        assert ApiClient(admin.url).text("/dlq/g/export", {"format": "jsonl"}) == "{}\n{}\n"
    refused = as_json(404, {"detail": "none"})
    with serving(lambda _: refused) as admin, pytest.raises(ProblemAnswerError, match="none"):
        ApiClient(admin.url).text("/dlq/g/export")
