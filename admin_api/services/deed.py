"""A change put together from two functions, where a class of its own would say no more."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from admin_api.changes import Action, Outcome, Preview


@dataclass(frozen=True, slots=True)
class Deed:
    """`look` and `do` are the `preview` and `carry_out` of admin_api.changes.Change."""

    action: Action
    target: str
    look: Callable[[], Awaitable[Preview]]
    do: Callable[[Preview], Awaitable[Sequence[Outcome]]]

    async def preview(self) -> Preview:
        return await self.look()

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        return await self.do(preview)
