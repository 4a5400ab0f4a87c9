"""Commands that name every option they do not know, each with the nearest ones they do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperCommand

from rocketmq_spark.jobs.session import PACKAGES, require_packages

_NEAREST_MAX = 2


class StrictCommand(TyperCommand):
    """Where the parser stops at the first unknown option, this one names all of them at once. What the jobs
    need is looked for before their modules are imported.

    The context is typer's or click's: which of them, depends on the version of typer.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parameters: list[Any] = list(self.get_params(ctx))
        known = {name for one in parameters for name in (*one.opts, *one.secondary_opts)}
        unknown = unknown_options(args, known)
        if unknown:
            ctx.fail(" ".join(_sentence(name, known) for name in unknown))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Raises: SetupError naming the packages that are missing."""
        require_packages(PACKAGES)
        return super().invoke(ctx)


def unknown_options(args: Sequence[str], known: Iterable[str]) -> list[str]:
    """The long options among the arguments that are not known, each once; what follows `--` is none."""
    names = set(known)
    options = args[: args.index("--")] if "--" in args else args
    given = [arg.partition("=")[0] for arg in options if arg.startswith("--")]
    return [name for name in dict.fromkeys(given) if name not in names]


def _sentence(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(
        name, [option for option in known if option.startswith("--")], _NEAREST_MAX
    )
    hint = f" (nearest: {', '.join(near)})" if near else ""
    return f"No such option: {name}{hint}."
