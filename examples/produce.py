"""Sends with the stock rocketmq-client-python 2.0.0: `produce.py TOPIC [COUNT] [NAME_SERVER]`.

Each line says where an acknowledged message is. A send that fails is tried again: when the leader died, the
library keeps to its address until it asks the name server the next time, which it does every 30 s.
"""

import os
import sys
import time
from typing import Any

from rocketmq.client import Message, Producer

TRIES = 120
PAUSE_S = 0.5


def send(producer: Any, topic: str, number: int) -> Any:
    """One message, tried until it is acknowledged. A try whose answer got lost may be stored too."""
    message = Message(topic)
    message.set_keys(f"key-{number}")
    message.set_tags("example")
    message.set_body(f"message {number}")
    for attempt in range(TRIES):
        try:
            return producer.send_sync(message)
        except Exception as error:  # noqa: BLE001 - the package has one exception class a C function
            if attempt == 0:
                print(f"message {number} is tried again: {error}", file=sys.stderr, flush=True)
            time.sleep(PAUSE_S)
    raise SystemExit(f"message {number} was not acknowledged in {TRIES} tries")


def main() -> None:
    defaults = ["Example", "10", "127.0.0.1:9876"]
    topic, count, namesrv = [*sys.argv[1:], *defaults[len(sys.argv) - 1 :]]
    producer = Producer("example-producer")
    producer.set_name_server_address(namesrv)
    producer.start()
    for number in range(int(count)):
        result = send(producer, topic, number)
        print(f"message {number}: id {result.msg_id}, offset {result.offset} of its queue", flush=True)
    producer.shutdown()
    os._exit(0)  # the library's threads call into Python until the very end


if __name__ == "__main__":
    main()
