"""Drives the transactions of the stock rocketmq-client-python, which are the C++ library's. Each ends by its
number, as in tests/integration/java/src/Transact.java.

usage: python -m tests.integration.drivers.python_transactions namesrv=… topic=… group=… out=… end=… sync=N
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from rocketmq.client import Message, TransactionMQProducer, TransactionStatus

from tests.integration.messages import Sample

KINDS = 6
FIRST_SEND_TRIES = 50


class Transactions:
    """Prepares and answers checks, and writes both down."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._asked: dict[int, int] = {}
        self._failed: set[int] = set()
        self._lock = threading.Lock()
        self._out = Path(options["out"]).open("w", encoding="utf-8")  # noqa: SIM115 - open until os._exit

    def run(self) -> None:
        producer = TransactionMQProducer(self._options["group"], self._check)
        producer.set_name_server_address(self._options["namesrv"])
        producer.start()
        for number in range(int(self._options["sync"])):
            self._send(producer, number)
        self._write(event="sent")
        while not Path(self._options["end"]).exists():
            time.sleep(0.02)

    def _send(self, producer: Any, number: int) -> None:
        """The library races its own first connection, and reports no route then."""
        sample = Sample("transaction", number)
        for _ in range(FIRST_SEND_TRIES if number == 0 else 1):
            message = Message(self._options["topic"])
            message.set_body(sample.body)
            message.set_property("number", str(number))
            try:
                result = producer.send_message_in_transaction(message, self._execute)
            except Exception as error:  # noqa: BLE001 - the package has one exception class a C function
                self._write(event="failed", number=number, error=str(error))
                time.sleep(0.2)
            else:
                self._write(event="prepared", number=number, status=int(result.status), id=result.msg_id)
                return
        with self._lock:
            self._failed.add(number)

    def _execute(self, message: Any, _: object) -> Any:
        number = int(message.get_property("number"))
        with self._lock:
            self._asked[number] = 0
        self._write(event="executing", number=number)
        ends = {0: TransactionStatus.COMMIT, 1: TransactionStatus.ROLLBACK}
        return ends.get(number % KINDS, TransactionStatus.UNKNOWN)

    def _check(self, message: Any) -> Any:
        number = int(message.get_property("number"))
        with self._lock:
            has_run, has_failed = number in self._asked, number in self._failed
            times = self._asked.get(number, 0) + 1
            if has_run:
                self._asked[number] = times
        self._write(event="checked", number=number, topic=message.topic)
        if has_failed or (has_run and number % KINDS in (1, 3)):
            return TransactionStatus.ROLLBACK
        if not has_run or (number % KINDS == 4 and times < 2):
            return TransactionStatus.UNKNOWN
        return TransactionStatus.COMMIT

    def _write(self, **fields: object) -> None:
        with self._lock:
            self._out.write(json.dumps(fields) + "\n")
            self._out.flush()


def main() -> None:
    try:
        Transactions(dict(argument.split("=", 1) for argument in sys.argv[1:])).run()
    except BaseException:  # noqa: BLE001 - nothing may stop the way to os._exit
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
