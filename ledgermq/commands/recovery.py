"""`ledgermq recover`: what is left of a group whose majority is gone, and the decision to go on with one
node.
"""

import contextlib
import getpass
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledgermq.app import Subcommands
from ledgermq.errors import UserError
from ledgermq.output import Column, moment, number, print_json, remark, show_table

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.recovery import Plan, Remains, StoppedStore

app = typer.Typer(
    name="recover",
    cls=Subcommands,
    help="When a majority of a group is gone for good: go on with what one node has.",
    no_args_is_help=True,
    add_completion=False,
)
Config = Annotated[
    Path,
    typer.Argument(metavar="BROKER_TOML", exists=True, dir_okay=False, help="Of the node, which is stopped."),
]
Stores = Annotated[
    list[Path] | None,
    typer.Option("--store", metavar="DIR", help="What is left of another member; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ANSWER_LIMIT_S: Final = 1.0
_COLUMNS: Final = (
    Column("node", "node"),
    number("log from", "beginIndex"),
    number("to", "endIndex"),
    number("of term", "endTerm"),
    number("committed", "commitIndex"),
    Column("last stored", lambda row: moment(row["lastStoredMs"])),
    number("term", "term"),
    Column("vote", "votedFor", nothing="-"),
    Column("voters", "voters"),
    number("since", "configurationIndex"),
    number("generation", "generation"),
    Column("impaired", "impairment", nothing="-"),
)


@app.command()
def show(config: Config, store: Stores = None, as_json: AsJson = False) -> None:
    """What stopped nodes have, which of them has the most, and what may be lost.

    It opens the stores as their nodes do at a start, and decides nothing.
    """
    from broker.store.recovery import RecoveryError, most_complete, plan_decision

    loaded = _load(config)
    with _opened(loaded, store or []) as stores:
        remains = [each.remains for each in stores]
        best = most_complete(remains)
        report: dict[str, Any] = {
            "group": loaded.group,
            "nodes": [_row(each) for each in remains],
            "mostComplete": best.node_id,
        }
        others = [each for each in remains if each is not best]
        with contextlib.suppress(RecoveryError):
            plan = plan_decision(loaded, best, others, is_impaired_trusted=True)
            report |= {"lost": plan.lost, "warnings": plan.warnings}
    if as_json:
        print_json(report)
        return
    show_table(report["nodes"], _COLUMNS, f"Group {loaded.group}")
    print(f"The most complete log has {best.node_id}. To go on with it alone means:")
    _print_plan(report.get("lost", ()), report.get("warnings", ()))


@app.command()
def decide(
    config: Config,
    store: Stores = None,
    confirm: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The text that the command shows without it.")
    ] = None,
    trust_impaired: Annotated[
        bool, typer.Option("--trust-impaired", help="Although the node may have forgotten what it promised.")
    ] = False,
) -> None:
    """Make this node the only voter of its group: what the others had is given up.

    Without --confirm nothing is changed. When the node has started, add empty nodes by `ledgermq member add`.
    """
    from broker.store.recovery import RecoveryError, plan_decision

    loaded = _load(config)
    with _opened(loaded, store or []) as stores:
        own = stores[0]
        try:
            plan = plan_decision(
                loaded,
                own.remains,
                [each.remains for each in stores[1:]],
                is_impaired_trusted=trust_impaired,
            )
        except RecoveryError as error:
            raise UserError(str(error)) from error
        _refuse_living(own.remains)
        _print_plan(plan.lost, plan.warnings)
        if confirm != plan.confirmation:
            raise UserError(_unconfirmed(plan, confirm))
        own.decide(plan, {"by": f"{_user()}@{socket.gethostname()}"})
    remark(
        f"{own.remains.node_id} is the only voter of {loaded.group}, generation "
        f"{plan.configuration.generation}. Start it; then `ledgermq member add` adds empty nodes."
    )


def _unconfirmed(plan: "Plan", given: str | None) -> str:
    wrong = "" if given is None else f"{given!r} is not what this decision is about. "
    return f"nothing was changed. {wrong}To decide so, add: --confirm {plan.confirmation}"


def _load(path: Path) -> "BrokerConfig":
    """Raises: UserError."""
    from broker.config import ConfigError, load_config

    try:
        config = load_config(path)
    except ConfigError as error:
        raise UserError(f"{path} cannot be used: {error}.") from error
    if not config.enable_dledger:
        raise UserError(f"{path} is the configuration of a broker without a group.")
    return config


@contextlib.contextmanager
def _opened(config: "BrokerConfig", others: list[Path]) -> Iterator[list["StoppedStore"]]:
    """The node's own store first. Raises: UserError."""
    from broker.store.message_log import StoreLockedError
    from broker.store.recovery import RecoveryError, stopped_store
    from commitlog.errors import CorruptLogError
    from dledger.environment import Environment

    with ExitStack() as stack:
        stores: list[StoppedStore] = []
        for folder in (config.store_path_root_dir, *others):
            try:
                stores.append(stack.enter_context(stopped_store(config, folder, Environment())))
            except StoreLockedError as error:
                raise UserError(f"{error}: stop its node first.") from error
            except CorruptLogError as error:
                raise UserError(
                    f"the log in {folder} is damaged: {error}. Start its node once, which cuts the log there "
                    "and marks itself, stop it, and ask again."
                ) from error
            except (RecoveryError, OSError) as error:
                raise UserError(str(error)) from error
        own, found = config.dledger_self_id, stores[0].remains.node_id
        if found != own:
            raise UserError(f"{config.store_path_root_dir} is the store of {found}, not of {own}.")
        yield stores


def _refuse_living(own: "Remains") -> None:
    """A process that answers at a member's address may be that member: then no majority is gone, or there
    would be two groups. Raises: UserError.
    """
    for member in own.newest.configuration.members:
        if member.id == own.node_id or not member.host:
            continue
        with contextlib.suppress(OSError):
            socket.create_connection((member.host, member.port), ANSWER_LIMIT_S).close()
            raise UserError(
                f"{member.id} answers at {member.host}:{member.port}. If a majority is alive, the group "
                "needs no decision; if not, stop what is left of it."
            )


def _print_plan(lost: "tuple[str, ...]", warnings: "tuple[str, ...]") -> None:
    for line in lost:
        print(f"  {line}")
    for line in warnings:
        remark(f"warning: {line}")


def _row(remains: "Remains") -> dict[str, Any]:
    newest = remains.newest
    return {
        "node": remains.node_id,
        "store": str(remains.store),
        "beginIndex": remains.begin_index,
        "endIndex": remains.end_index,
        "endTerm": remains.end_term,
        "commitIndex": remains.commit_index,
        "lastStoredMs": remains.last_stored_ms,
        "term": remains.term,
        "votedFor": remains.voted_for,
        "voters": list(newest.configuration.voters),
        "members": list(newest.configuration.ids),
        "configurationIndex": newest.index,
        "generation": remains.generation,
        "impairment": None if remains.impairment is None else remains.impairment.reason,
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
