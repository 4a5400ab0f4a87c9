"""Groups and nodes as tables, from the JSON of `/api/v1/cluster`."""

from typing import Final

from ledgermq.output import (
    Column,
    Json,
    Styled,
    moment,
    number,
    printable,
    remark,
    show_fields,
    show_table,
    write,
    write_cells,
)

STOCK_WORDS: Final = "a stock RocketMQ broker, which reports nothing about replication"


def show_cluster(view: Json) -> None:
    """Print every group, and for each node without an answer the reason."""
    if not view["groups"]:
        write(Styled("No broker has registered."))
    for group in view["groups"]:
        show_group(group)
        for node in group["nodes"]:
            if node["problem"]:
                who = node["id"] or node["remotingAddress"]
                write(Styled(printable(f"{who}: {node['problem']}")))
    for endpoint in view.get("grpcEndpoints", ()):
        write(endpoint_line(endpoint))
    for namesrv in namesrvs_of(view):
        if namesrv["problem"]:
            remark(f"name server {namesrv['address']}: {namesrv['problem']}")


def namesrvs_of(view: Json) -> list[Json]:
    """Each name server; an admin service of an earlier release reports one."""
    found: list[Json] = view.get("namesrvs") or [view["namesrv"]]
    return found


def endpoint_line(endpoint: Json) -> Styled:
    """`grpc 127.0.0.1:8081 up`"""
    problem = f": {endpoint['problem']}" if endpoint["problem"] else ""
    text = printable(f"grpc {endpoint['address']} {endpoint['state']}{problem}")
    return Styled(text, "bold red" if endpoint["state"] == "down" else "")


def show_group(group: Json) -> None:
    leader = f"{group['leaderId']} leads in term {group['term']}" if group["leaderId"] else "no leader known"
    if group.get("acceptsMessages") is False:
        leader += ", accepts no messages"
    said = STOCK_WORDS if is_stock(group) else leader
    show_table(group["nodes"], _STATUS_COLUMNS, f"{group['group']}: {group['state']}, {said}")


def is_stock(group: Json) -> bool:
    """Whether the brokers of the group are known to be Apache RocketMQ's."""
    return bool(group["nodes"]) and all(node["isLedgermq"] is False for node in group["nodes"])


def node_state(node: Json) -> Styled:
    """The role of a node that is up, or its state; what it repairs at present, or that it is of the past."""
    unknown = "up, stock" if node["isLedgermq"] is False else "unknown"
    state = (node["role"] or unknown).lower() if node["state"] == "up" else node["state"]
    style = {"leader": "bold green", "down": "bold red"}.get(state, "")
    if node["impairment"] is not None:
        state, style = f"{state}, repairing: {node['impairment']}", "yellow"
    if (newer := node.get("newerGeneration")) is not None:
        state = f"{state}, outdated: its group is of generation {newer} (ledgermq recover)"
        style = "bold red"
    return Styled(printable(state), style)


def _mark(name: str) -> Column:
    key = f"{name}Index"
    return number(name, lambda node: node["log"][key])


_STATUS_COLUMNS = (
    Column("node", "id"),
    Column("state", node_state),
    Column("clients", "remotingAddress"),
    number("term", "term"),
    *map(_mark, ("begin", "end", "persisted", "committed", "applied")),
    number("lag", "lagEntries"),
)
_NODE_COLUMNS = (
    Column("node", "id"),
    Column("group", "group"),
    Column("state", node_state),
    Column("clients", "remotingAddress"),
    Column("replication", "replicationAddress"),
    number("brokerId", "brokerId"),
    number("pid", "pid"),
    Column("started", lambda node: moment(node["startedAtMs"])),
)


def show_nodes(view: Json) -> None:
    rows = [{"group": group["group"], **node} for group in view["groups"] for node in group["nodes"]]
    write_cells(rows, _NODE_COLUMNS)


def show_node(found: Json) -> None:
    """Print one node: its own report, and its leader's view of it."""
    node, group = found["node"], found["group"]
    log, push = node["log"], node["push"] or {}
    fields: dict[str, object] = {
        "group": f"{group['group']} ({group['brokerName']}), {group['state']}",
        "state": node_state(node),
        "clients": node["remotingAddress"],
        "replication": node["replicationAddress"],
        "brokerId in the name server": node["brokerId"],
        "term": node["term"],
        "follows": node["leaderId"],
        "begin .. end": _range(log["beginIndex"], log["endIndex"]),
        "persisted, committed, applied": _range(
            log["persistedIndex"], log["committedIndex"], log["appliedIndex"]
        ),
        "lag": _range(node["lagEntries"], node["lagBytes"], words=("entries", "bytes")),
        "pid": node["pid"],
        "started": moment(node["startedAtMs"]),
    }
    if push:
        fields["pushed by its leader"] = (
            f"{push['state']}, match {push['matchIndex']}, next {push['nextIndex']}"
        )
        fields["connected to its leader"] = push["isConnected"]
    if node["problem"]:
        fields["problem"] = node["problem"]
    if node["lastKnown"]:
        known = node["lastKnown"]
        fields["last heard of"] = f"{moment(known['atMs'])}: {known['role']} in term {known['term']}"
    show_fields(fields, node["id"] or node["remotingAddress"])


def _range(*values: int | None, words: tuple[str, ...] = ()) -> str:
    shown = ["unknown" if value is None else str(value) for value in values]
    if words:
        return ", ".join(f"{value} {word}" for value, word in zip(shown, words, strict=True))
    return (" .. " if len(shown) == 2 else ", ").join(shown)
