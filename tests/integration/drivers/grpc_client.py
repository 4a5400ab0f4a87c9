"""Drives RocketMQ's own Python client for gRPC (rocketmq-python-client), in the environment that
`scripts/setup` makes for it. The Java program tests/integration/java/grpc/GrpcDriver.java takes the same.

usage: python grpc_client.py ACTION endpoint=… topic=… group=… out=… [count=N] …

send      count messages `N`; kind=normal|fifo|delay|priority (N), tag=, delayMs= (kind delay),
          recall=true (the last one)
simple    a simple consumer, until count messages are acknowledged; filter=, sql=, invisibleS=;
          change=BODY is not acknowledged the first time, but made visible again after a second
push      a push consumer, until it was given count messages; fail=BODY with times=N fails N times
          distinct=true for both: a message that comes again does not count
transact  count transactions; each ends by its number (modulo 3): 0 commit, 1 roll back, 2 commit when asked;
          until the file end= is there

hold=FILE: the first acknowledgement (or change) and the first end of a transaction wait for that file
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

KINDS = 3
INVISIBLE_S = 15
LIMIT_S = 60.0
SEND_TRIES = 20


class Report:
    """One JSON object a line."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - open until os._exit
        self._lock = threading.Lock()

    def write(self, **fields: Any) -> None:
        with self._lock:
            self._file.write(json.dumps(fields) + "\n")
            self._file.flush()


def seen(message: Any, event: str = "received") -> dict[str, Any]:
    return {
        "event": event,
        "body": message.body.decode(),
        "id": message.message_id,
        "topic": message.topic,
        "tag": message.tag,
        "keys": sorted(message.keys or ()),
        "properties": dict(message.properties or {}),
        "group": message.message_group,
        "attempt": message.delivery_attempt,
    }


def message_of(options: dict[str, str], number: int) -> Any:
    message = Message()
    message.topic = options["topic"]
    message.body = str(number).encode()
    message.keys = f"key{number}"
    message.add_property("number", str(number))
    if options.get("tag"):
        message.tag = options["tag"]
    if options.get("kind") == "fifo":
        message.message_group = f"group{number % 3}"
    if options.get("kind") == "delay":
        message.delivery_timestamp = int(time.time() + int(options["delayMs"]) / 1000)
    if options.get("kind") == "priority":
        message.priority = number
    return message


def send(options: dict[str, str], report: Report) -> None:
    producer = Producer(configuration(options), (options["topic"],))
    producer.startup()
    receipt = None
    for number in range(int(options["count"])):
        message = message_of(options, number)
        for attempt in range(int(options.get("tries", SEND_TRIES))):
            try:
                receipt = producer.send(message)
            except Exception as error:  # noqa: BLE001 - a client's errors have no class in common
                report.write(event="failed", body=str(number), attempt=attempt, error=str(error))
                time.sleep(0.2)
            else:
                report.write(event="sent", body=str(number), id=receipt.message_id, offset=receipt.offset)
                break
        time.sleep(int(options.get("pauseMs", "0")) / 1000)
    if options.get("recall") and receipt is not None:
        report.write(
            event="recalled", id=str(producer.recall_message(options["topic"], receipt.recall_handle))
        )
    producer.shutdown()


def wait_for(file: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not Path(file).exists() and time.monotonic() < end_s:
        time.sleep(0.05)


def held(options: dict[str, str]) -> None:
    if "hold" in options:
        wait_for(options["hold"])


class Left:
    """How many messages are still to come."""

    def __init__(self, options: dict[str, str]) -> None:
        self.number = int(options["count"])
        self._is_distinct = "distinct" in options
        self._taken: set[bytes] = set()

    def take(self, message: Any) -> None:
        if not self._is_distinct or message.body not in self._taken:
            self.number -= 1
        self._taken.add(message.body)


def simple(options: dict[str, str], report: Report) -> None:
    consumer = SimpleConsumer(configuration(options), options["group"], subscription(options))
    consumer.startup()
    report.write(event="ready")
    left, end_s = Left(options), time.monotonic() + LIMIT_S
    invisible_s = int(options.get("invisibleS", INVISIBLE_S))
    while left.number > 0 and time.monotonic() < end_s:
        try:
            messages = consumer.receive(16, invisible_s) or []
        except Exception as error:  # noqa: BLE001 - as above
            report.write(event="failed", error=str(error))
            time.sleep(0.2)
            continue
        for message in messages:
            report.write(**seen(message))
            held(options)
            if message.body.decode() == options.get("change") and message.delivery_attempt == 1:
                consumer.change_invisible_duration(message, 1)
                continue
            consumer.ack(message)
            left.take(message)
    consumer.shutdown()


class Listener(MessageListener):  # type: ignore[misc]  # the package has no types
    def __init__(self, options: dict[str, str], report: Report) -> None:
        self._fail = options.get("fail")
        self._times = int(options.get("times", "0"))
        self._report = report
        self._left = Left(options)
        self.is_done = threading.Event()

    def consume(self, message: Any) -> Any:
        self._report.write(**seen(message))
        self._left.take(message)
        if self._left.number <= 0:
            self.is_done.set()
        if message.body.decode() == self._fail and self._times > 0:
            self._times -= 1
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS


def push(options: dict[str, str], report: Report) -> None:
    listener = Listener(options, report)
    consumer = PushConsumer(configuration(options), options["group"], listener, subscription(options))
    consumer.startup()
    report.write(event="ready")
    listener.is_done.wait(LIMIT_S)
    time.sleep(1.0)  # what ends the last message is sent after the listener has returned
    consumer.shutdown()


class Checker(TransactionChecker):  # type: ignore[misc]
    def __init__(self, report: Report) -> None:
        self._report = report

    def check(self, message: Any) -> Any:
        self._report.write(**seen(message, "checked"))
        commits = int(message.body) % KINDS == KINDS - 1
        return (
            TransactionResolution.COMMIT
            if commits
            else TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        )


def transact(options: dict[str, str], report: Report) -> None:
    producer = Producer(configuration(options), (options["topic"],), checker=Checker(report))
    producer.startup()
    transactions = []
    for number in range(int(options["count"])):
        transaction = producer.begin_transaction()
        receipt = producer.send(message_of(options, number), transaction)
        report.write(event="prepared", body=str(number), id=receipt.message_id)
        transactions.append(transaction)
    held(options)
    for number, transaction in enumerate(transactions):
        if number % KINDS == 0:
            transaction.commit()
        elif number % KINDS == 1:
            transaction.rollback()
    wait_for(options["end"])
    producer.shutdown()


def configuration(options: dict[str, str]) -> Any:
    account = Credentials(options.get("accessKey", ""), options.get("secretKey", ""))
    return ClientConfiguration(options["endpoint"], account)


def subscription(options: dict[str, str]) -> dict[str, Any]:
    if options.get("sql"):
        from rocketmq.grpc_protocol import FilterType

        return {options["topic"]: FilterExpression(options["sql"], FilterType.SQL)}
    return {options["topic"]: FilterExpression(options.get("filter", "*"))}


def main() -> None:
    action, *pairs = sys.argv[1:]
    options = dict(pair.split("=", 1) for pair in pairs)
    report = Report(options["out"])
    {"send": send, "simple": simple, "push": push, "transact": transact}[action](options, report)
    report.write(event="end")
    os._exit(0)  # the client's threads may outlive it


if __name__ == "__main__":
    main()
