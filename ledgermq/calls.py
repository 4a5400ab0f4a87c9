"""One call of a command. Without --admin it asks the brokers, through the admin services in this process;
with --admin it asks an admin service. Both return the same JSON, so that there is one form to print. Paths
are relative to `/api/v1`.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import orjson
import typer

from ledgermq.errors import PARTIAL, WRONG_USAGE, UserError
from ledgermq.options import DEFAULT_NAMESRV, Admin, AsJson, Namesrv, Token
from ledgermq.output import Json, print_json, remark

if TYPE_CHECKING:
    from pydantic import BaseModel

    from admin_api.services import Services
    from ledgermq.api_client import ApiClient

P = ParamSpec("P")
T = TypeVar("T")
Ask = Callable[["Services"], Awaitable["BaseModel | str"]]


@dataclass(frozen=True)
class Call:
    """The service or name server to ask, and the form of the output."""

    namesrv: str = DEFAULT_NAMESRV
    admin: str | None = None
    token: str | None = None
    as_json: bool = False

    @functools.cached_property
    def service(self) -> "ApiClient":
        """The admin service of --admin; all requests of a command share one limit for waiting."""
        from ledgermq.api_client import ApiClient

        assert self.admin is not None
        return ApiClient(self.admin, self.token)

    def get(self, path: str, local: Ask, query: Mapping[str, object] | None = None) -> Json:
        """Return the answer of `GET /api/v1{path}`. Raises: UserError."""
        if self.admin is not None:
            answer: Json = self.service.call("GET", path, query)
            return answer
        return in_process(self.namesrv, local)

    def get_beside(self, part: str, path: str, local: Ask, query: Mapping[str, object] | None = None) -> Json:
        """As `get`, for an optional part of the output: if it cannot be read, the command goes on, and the
        answer has only the reason.
        """
        try:
            return self.get(path, local, query)
        except UserError as error:
            return {"problems": [{"address": part, "problem": str(error)}], "isPartial": True}

    def show(self, answer: Json, render: Callable[[Json], None]) -> None:
        """Print the answer. Raises: typer.Exit when a part of it is missing."""
        if self.as_json:
            print_json(answer)
        else:
            render(answer)
            for problem in answer.get("problems") or ():
                remark(f"{problem['address']}: {problem['problem']}")
        if answer.get("isPartial"):
            raise typer.Exit(PARTIAL)


def in_process(namesrv: str, ask: Ask) -> Json:
    """Ask through admin services that are opened for this one question. Raises: UserError."""
    import asyncio

    answer: Json = orjson.loads(asyncio.run(checked(namesrv, ask)))
    return answer


async def checked(namesrv: str, ask: Ask) -> str:
    """Return the answer as JSON; a text stays as it is. Raises: UserError if a service or broker refuses."""
    from pydantic import ValidationError

    from admin_api.errors import InvalidError, ServiceError
    from admin_api.gateway import AskError
    from admin_api.services import open_services
    from admin_api.settings import Settings

    try:
        async with open_services(Settings(namesrv=namesrv)) as services:
            answer = await ask(services)
    except ValidationError as error:
        from admin_api.errors import words_of

        raise UserError(f"{'; '.join(map(words_of, error.errors()))}.", WRONG_USAGE) from error
    except InvalidError as error:
        raise UserError(sentence(error), WRONG_USAGE) from error
    except (AskError, ServiceError) as error:
        raise UserError(sentence(error)) from error
    return answer if isinstance(answer, str) else answer.model_dump_json(by_alias=True)


def sentence(error: Exception) -> str:
    """The error's text with a full stop."""
    words = str(error)
    return words if words.endswith((".", "!", "?")) else f"{words}."


def remote(command: Callable[Concatenate[Call, P], None]) -> Callable[..., None]:
    """Gives a command the options of the cluster to use, and passes them as its first argument."""
    return with_options(command, Call, cluster_options)


def with_options(
    command: Callable[Concatenate[T, P], None], make: Callable[..., T], *declared: Callable[..., None]
) -> Callable[..., None]:
    """Gives a command the options that these functions declare, and passes what `make` returns for their
    values as its first argument.
    """
    own = list(inspect.signature(command).parameters.values())[1:]
    shared = [option for each in declared for option in inspect.signature(each).parameters.values()]

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        command(make(**{option.name: options.pop(option.name) for option in shared}), *args, **options)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *shared)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def cluster_options(
    namesrv: Namesrv = DEFAULT_NAMESRV, admin: Admin = None, token: Token = None, as_json: AsJson = False
) -> None:
    """Declares the options that every remote command has."""


def path_of(*parts: str) -> str:
    """`topics`, `a/b` -> `/topics/a%2Fb`: names may have any characters."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)
