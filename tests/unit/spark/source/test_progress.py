"""Lag from what Spark reports."""

from __future__ import annotations

from types import SimpleNamespace

from rocketmq_spark.source.progress import lag_by_queue, total_lag

END, LATEST = '{"T": {"a:0": 5, "a:1": 9}}', '{"T": {"a:0": 12, "a:1": 9, "b:0": 4}}'


def test_lag_is_the_difference_by_queue() -> None:
    progress = {"sources": [{"endOffset": END, "latestOffset": LATEST}]}
    assert lag_by_queue(progress) == {"T": {"a:0": 7, "a:1": 0, "b:0": 4}}
    assert total_lag(progress) == 11


def test_progress_may_be_an_object_with_parsed_offsets() -> None:
    source = SimpleNamespace(endOffset={"T": {"a:0": 5}}, latestOffset={"T": {"a:0": 6}})
    assert total_lag(SimpleNamespace(sources=[source])) == 1


def test_other_sources_are_passed_over() -> None:
    others = [
        {"endOffset": None, "latestOffset": None},
        {"endOffset": "17", "latestOffset": "18"},
        {"endOffset": "not JSON", "latestOffset": "{}"},
        {"endOffset": '{"T": {"0": 1}}', "latestOffset": '{"T": {"0": 2}}'},
        {"endOffset": '{"logOffset": 1}', "latestOffset": '{"logOffset": 2}'},
    ]
    assert lag_by_queue({"sources": others}) == {}
