"""Cleaning up by hand what retention would delete in its time."""

from collections.abc import Sequence

from admin_api.changes import Action, Effect, Outcome, Preview
from admin_api.gateway import Gateway
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
            async def ask(address: str) -> str | None:
                return await clean(self._gateway, address, garbage)

            gathered = await self._gateway.ask_each([effect.subject for effect in preview.effects], ask)
            done = [
                Outcome(f"{address}: {said}" if said else address, ok=True)
                for address, said in gathered.answers.items()
            ]
            return [*done, *(Outcome(t.address, ok=False, problem=t.problem) for t in gathered.troubles)]

        target = _WORDS[garbage]
        return Deed(Action.BROKER_CLEAN, target, look, do)
