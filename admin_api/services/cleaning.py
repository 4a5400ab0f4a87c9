"""Cleaning up by hand what retention would delete in its time."""

import asyncio
from collections.abc import Sequence

from admin_api.changes import Action, Effect, Outcome, Preview
from admin_api.gateway import AskError, Gateway
from admin_api.services.deed import Deed
from admin_api.services.errors import NotFoundError
from admin_api.sources.brokers import Brokers
from admin_api.sources.cleaning import Garbage, clean

_WORDS = {
    Garbage.COMMIT_LOG: "log files past their time",
    Garbage.CONSUME_QUEUES: "files of consume queues whose messages are gone",
    Garbage.UNUSED_TOPICS: "queues of topics that no longer exist",
}


class CleaningService:
    """Asks brokers to clean up."""

    def __init__(self, gateway: Gateway, directory: Brokers) -> None:
        self._gateway = gateway
        self._directory = directory

    def clean(self, garbage: Garbage, addresses: Sequence[str] | None) -> Deed:
        """On these brokers, or on all that the name server lists."""

        async def look() -> Preview:
            known = {entry.address for entry in (await self._directory.look()).listed}
            unknown = set(addresses or ()) - known
            if unknown:
                raise NotFoundError(f"The name server lists no broker {min(unknown)}.")
            wanted = sorted(known if addresses is None else set(addresses))
            effects = tuple(Effect(address, _WORDS[garbage], "deleted") for address in wanted)
            is_destructive = garbage is Garbage.COMMIT_LOG
            warnings = ("Messages in them can be read no more.",) if is_destructive else ()
            return Preview(Action.BROKER_CLEAN, target, effects, warnings, is_destructive=is_destructive)

        async def do(preview: Preview) -> Sequence[Outcome]:
            return await asyncio.gather(*(self._clean(each.subject, garbage) for each in preview.effects))

        target = _WORDS[garbage]
        return Deed(Action.BROKER_CLEAN, target, look, do)

    async def _clean(self, address: str, garbage: Garbage) -> Outcome:
        try:
            said = await clean(self._gateway, address, garbage)
        except AskError as error:
            return Outcome.failed(address, error)
        return Outcome(f"{address}: {said}" if said else address, ok=True)
