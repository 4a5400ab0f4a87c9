"""Drives the stock rocketmq-client-python (ctypes over librocketmq) from a process of its own.

Four quirks of the library shape this program. Shutting a push consumer down crashes it. Library threads call
into Python until the end of the process, so it ends by `os._exit`. Every consumer and callback must stay
referenced. And of several threads, one that is held up between PullRequest::removeMessage and
RemoteBrokerOffsetStore::updateOffset takes the offset of its queue back: a test that counts on the committed
offsets gives `--threads 1`.

It prints to stdout itself, so reports go to a file, one JSON object a line.

usage: python -m tests.integration.drivers.python_client produce|stream|consume --namesrv … --topic … …
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from rocketmq.client import ConsumeStatus, Message, Producer, PushConsumer

from tests.integration.messages import WORD, Sample, samples

KINDS = ("sync", "oneway", "ordered", "large")
FIRST_SEND_TRIES = 50
OFFSET_COMMIT_S = 11.0  # the library commits offsets every 5 s and only then; on a busy machine it is late


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _message(topic: str, sample: Sample) -> Any:
    message = Message(topic)
    message.set_keys(sample.key)
    message.set_tags(sample.tag)
    message.set_body(sample.body)
    message.set_property("number", str(sample.number))
    message.set_property("word", WORD)
    return message


def _send(producer: Any, topic: str, sample: Sample) -> dict[str, Any]:
    message = _message(topic, sample)
    if sample.kind == "oneway":
        producer.send_oneway(message)
        return {"kind": sample.kind, "number": sample.number}
    if sample.kind == "ordered":
        result = producer.send_orderly_with_sharding_key(message, sample.shard)
    else:
        result = producer.send_sync(message)
    return {
        "kind": sample.kind,
        "number": sample.number,
        "status": int(result.status),
        "msg_id": result.msg_id,
        "offset": result.offset,
    }


def _sign(client: Any, arguments: argparse.Namespace) -> None:
    if arguments.access_key:
        client.set_session_credentials(arguments.access_key, arguments.secret_key, "ALIYUN")


def _start_producer(arguments: argparse.Namespace, orderly: bool) -> Any:
    producer = Producer(f"{arguments.group}-{'ordered' if orderly else 'plain'}", orderly=orderly)
    producer.set_name_server_address(arguments.namesrv)
    _sign(producer, arguments)
    producer.start()
    return producer


def _send_first(producer: Any, topic: str, sample: Sample) -> dict[str, Any]:
    """Send, again and again at first: the library races its own first connection and reports no route."""
    for _ in range(FIRST_SEND_TRIES):
        try:
            return _send(producer, topic, sample)
        except Exception as error:  # noqa: BLE001 - the package has one exception class a C function
            last = error
            time.sleep(0.2)
    raise last


def produce(arguments: argparse.Namespace) -> None:
    producers = {
        orderly: _start_producer(arguments, orderly)
        for orderly in (False, True)
        if not orderly or arguments.ordered
    }
    started: set[bool] = set()
    with Path(arguments.out).open("w", encoding="utf-8") as out:
        for sample in samples(**{kind: getattr(arguments, kind) for kind in KINDS}):
            orderly = sample.kind == "ordered"
            send = _send if orderly in started else _send_first
            report = send(producers[orderly], arguments.topic, sample)
            started.add(orderly)
            out.write(json.dumps(report) + "\n")
    for producer in producers.values():
        producer.shutdown()


def stream(arguments: argparse.Namespace) -> None:
    """Send without pause until the file `--stop` appears, and write down how each send ended."""
    producer = _start_producer(arguments, orderly=False)
    with Path(arguments.out).open("w", encoding="utf-8") as out:
        for number in itertools.count():
            if Path(arguments.stop).exists():
                break
            try:
                report = _send(producer, arguments.topic, Sample("pystream", number))
            except Exception as error:  # noqa: BLE001 - the package has one exception class a C function
                report = {"kind": "pystream", "number": number, "status": "ERROR", "error": str(error)}
                time.sleep(0.05)
            out.write(json.dumps(report | {"at_ms": time.time_ns() // 1_000_000}) + "\n")
            out.flush()
    producer.shutdown()


class Recorder:
    """Writes down every message the consumer is called with, in the order of the calls."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.expected = arguments.count
        self.is_failing_first = arguments.fail_first
        self.count = 0
        self.last_s = time.monotonic()
        self._lock = threading.Lock()
        self._out = Path(arguments.out).open("w", encoding="utf-8")  # noqa: SIM115 - open until os._exit

    def __call__(self, message: Any) -> Any:
        report = {
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "body": _text(message.body),
            "keys": _text(message.keys),
            "tags": _text(message.tags),
            "number": _text(message.get_property("number")),
            "word": _text(message.get_property("word")),
            "reconsume_times": message.reconsume_times,
            "topic": message.topic,
        }
        with self._lock:
            self._out.write(json.dumps(report) + "\n")
            self._out.flush()
            self.count += 1
            self.last_s = time.monotonic()
        if self.is_failing_first and message.reconsume_times == 0:
            return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    def wait(self, limit_s: float, quiet_s: float) -> None:
        """Return when the expected number is there and nothing came for `quiet_s`, or at the limit."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            if self.count >= self.expected and time.monotonic() - self.last_s >= quiet_s:
                return
            time.sleep(0.05)


def consume(arguments: argparse.Namespace) -> None:
    recorder = Recorder(arguments)
    consumer = PushConsumer(arguments.group, orderly=arguments.orderly)
    consumer.set_name_server_address(arguments.namesrv)
    _sign(consumer, arguments)
    consumer.set_instance_name(f"{arguments.group}-{os.getpid()}")
    if arguments.threads:
        consumer.set_thread_count(arguments.threads)
    consumer.subscribe(arguments.topic, recorder, arguments.expression)
    consumer.start()
    recorder.wait(arguments.limit_s, arguments.quiet_s)
    if arguments.commit:
        time.sleep(OFFSET_COMMIT_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["produce", "stream", "consume"])
    for name in ("--namesrv", "--topic", "--group", "--out"):
        parser.add_argument(name, required=True)
    for name in (*(f"--{kind}" for kind in KINDS), "--count"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="consume: as many as the library wants if 0")
    parser.add_argument("--stop", help="stream: the file that ends it")
    parser.add_argument("--expression", default="*")
    parser.add_argument("--access-key", default="", help="sign as this user")
    parser.add_argument("--secret-key", default="")
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--quiet-s", type=float, default=2.0)
    for name in ("--orderly", "--fail-first", "--commit"):
        parser.add_argument(name, action="store_true")
    arguments = parser.parse_args()
    try:
        {"produce": produce, "stream": stream, "consume": consume}[arguments.action](arguments)
    except BaseException:  # noqa: BLE001 - nothing may stop the way to os._exit
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
