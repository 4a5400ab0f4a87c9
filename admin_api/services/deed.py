"""A change put together from two functions, where a class of its own would say no more; and what came of
settings that were changed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from admin_api.changes import Action, Outcome, Preview
from admin_api.gateway import AskError


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


def settings_outcomes(
    wanted: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]
) -> list[Outcome]:
    """One a key, by its value then and now: RocketMQ's own processes say yes to a value that they cannot use,
    and stay at the one they had. A value may be written in another way than it was given.
    """
    problem = "it said yes, and has the value that it had before: it can make nothing of this one"
    ignored = {key for key, value in wanted.items() if before.get(key) == after.get(key) != value}
    return [Outcome(key, key not in ignored, problem if key in ignored else None) for key in sorted(wanted)]


def unread_outcomes(wanted: Mapping[str, str], silence: AskError) -> list[Outcome]:
    """The same where the values of now are not to be had: nobody knows, and it is not said to have failed."""
    problem = f"it said yes; whether it has the value now is not known: {silence}"
    return [Outcome(key, ok=False, problem=problem) for key in sorted(wanted)]
