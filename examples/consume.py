"""Consumes with the stock rocketmq-client-python 2.0.0: `consume.py TOPIC [NAME_SERVER]`, until Ctrl-C."""

import os
import sys
import time
from typing import Any

from rocketmq.client import ConsumeStatus, PushConsumer

OFFSET_COMMIT_INTERVAL_S = 5  # the library stores offsets this often, and only then


def on_message(message: Any) -> Any:
    """Called by the library's threads."""
    print(message.body.decode(), flush=True)
    return ConsumeStatus.CONSUME_SUCCESS


def main() -> None:
    defaults = ["Example", "127.0.0.1:9876"]
    topic, namesrv = [*sys.argv[1:], *defaults[len(sys.argv) - 1 :]]
    consumer = PushConsumer("example-consumer")
    consumer.set_name_server_address(namesrv)
    consumer.subscribe(topic, on_message)
    consumer.start()
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("storing offsets ...", file=sys.stderr)
        time.sleep(OFFSET_COMMIT_INTERVAL_S + 1)
    os._exit(0)  # not consumer.shutdown(): in this version of the library it crashes


if __name__ == "__main__":
    main()
