"""A change whose effects and end a test decides."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from admin_api.changes import Action, Effect, Outcome, Preview
from admin_api.gateway import Trouble
from admin_api.security.policy import Actor, Role

OPERATOR = Actor("operator", Role.OPERATE, "127.0.0.1")


@dataclass
class SampleChange:
    """Moves the offset of one queue from `at` to 57."""

    at: int = 120
    is_destructive: bool = True
    basis: str | None = None
    outcomes: Sequence[Outcome] = (Outcome("broker-a/3", ok=True),)
    preview_error: Exception | None = None
    error: BaseException | None = None
    action: Action = Action.OFFSET_RESET
    target: str = "group-a of topic-a"
    left_out: tuple[Trouble, ...] = ()
    done: list[Preview] = field(default_factory=list)

    async def preview(self) -> Preview:
        if self.preview_error is not None:
            raise self.preview_error
        effect = Effect("broker-a/3", str(self.at), "57")
        return Preview(
            self.action,
            self.target,
            (effect,),
            is_destructive=self.is_destructive,
            basis=self.basis,
            left_out=self.left_out,
        )

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        self.done.append(preview)
        if self.error is not None:
            raise self.error
        return self.outcomes
