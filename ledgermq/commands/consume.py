"""`ledgermq consume`: each message as a line of text."""

import sys
from dataclasses import dataclass

from ledgermq.client.consumer import Consumer
from ledgermq.commands.signing import signing_client
from ledgermq.errors import UserError
from ledgermq.output import printable
from ledgermq.signals import run
from remoting.errors import ClientError


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """What to read; `count` None means until Ctrl-C."""

    topic: str
    namesrv: str
    group: str
    from_first: bool
    count: int | None


def consume(options: ConsumeOptions) -> None:
    """Prints bodies on stdout, words on stderr; the offsets of what was printed are stored.

    Raises: UserError.
    """
    try:
        run(print_messages(options))
    except ClientError as error:
        raise UserError(f"{error}.") from error


async def print_messages(options: ConsumeOptions) -> None:
    """`consume` on the running loop."""
    client = signing_client()
    count = 0
    try:
        consumer = Consumer(
            client, options.namesrv, options.topic, options.group, from_first=options.from_first, say=_say
        )
        async with consumer:
            async for delivery in consumer.messages():
                _print(delivery.record.body.decode("utf-8", "replace"))
                consumer.consume(delivery)
                count += 1
                if count == options.count:
                    break
    finally:
        await client.close()
        _say(f"{count} messages.")


def _print(body: str) -> None:
    """As it is for a program; a terminal is not spoken to by it."""
    print(printable(body) if sys.stdout.isatty() else body, flush=True)


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
