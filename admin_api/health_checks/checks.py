"""The health checks: replication groups (can each accept writes and lose a node, do its replicas keep up?),
addresses (can clients reach those that the name server returns?), machines (disks, clocks, versions, limits),
security (open ports, certificates, files that other users can read), and consumers. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from admin_api.cluster.schemas import GroupState, GroupView, NamesrvView, NodeState, NodeView
from admin_api.groups.overview import GroupPresence
from admin_api.health_checks.facts import (
    Facts,
    Finding,
    end_it,
    error,
    info,
    name_of,
    voters,
    warning,
    words_of_ms,
)
from sockets import addresses

LAG_BYTES_MAX: Final = 64 * 1024 * 1024
LAG_MS_MAX: Final = 10_000
ELECTIONS_MAX: Final = 3
ELECTIONS_WINDOW_MS: Final = 600_000


def check_name_servers(facts: Facts) -> Iterator[Finding]:
    view = facts.view
    is_any_up = view.namesrv.state is NodeState.UP
    for namesrv in view.namesrvs:
        if namesrv.state is not NodeState.UP:
            yield _silent_name_server(facts, namesrv, is_only=not is_any_up)
        elif namesrv.unlisted:
            yield warning(
                "namesrv-incomplete",
                namesrv.address,
                f"The name server {namesrv.address} does not list {', '.join(namesrv.unlisted)}, which "
                "others list: clients that ask it find less.",
                "One that has just started learns of every broker within 30 seconds. If it stays, add it to "
                "namesrvAddr of these brokers, and search their logs for failed registrations.",
            )
    if is_any_up and not view.groups:
        yield error(
            "no-broker",
            view.namesrv.address,
            "No broker is registered at the name server.",
            "Start brokers whose namesrvAddr is this address, and read in their logs why they do not "
            "register.",
        )


def _silent_name_server(facts: Facts, namesrv: NamesrvView, *, is_only: bool) -> Finding:
    """`is_only`: no other one answers."""
    listener = facts.hanging.get(namesrv.address)
    start = "Start it" if listener is None else f"{end_it(namesrv.address, listener)} Then start it"
    sentence = f"The name server does not answer: {namesrv.problem}."
    if is_only:
        return error(
            "namesrv-silent",
            namesrv.address,
            sentence,
            f"{start}, or name the right one (--namesrv). Clients that are connected go on; new ones, and "
            "clients that look for a new leader, find none.",
        )
    return warning(
        "namesrv-silent",
        namesrv.address,
        f"{sentence} Others do.",
        f"{start}, or take it out of --namesrv, of brokers' namesrvAddr and of clients. Clients that are "
        "given another one too ask that; of clients that are given only this one, new ones and those that "
        "look for a new leader find none.",
    )


def check_grpc_endpoints(facts: Facts) -> Iterator[Finding]:
    for endpoint in facts.view.grpc_endpoints:
        if endpoint.state is not NodeState.UP:
            yield warning(
                "grpc-endpoint-down",
                endpoint.address,
                f"The gRPC endpoint {endpoint.address} is not there: {endpoint.problem}.",
                "Start it again (`ledgermq grpc`, or `ledgermq up`). Clients that name another endpoint too "
                "go on there. One that was killed on purpose is named for a day.",
            )


def check_writable(facts: Facts) -> Iterator[Finding]:
    """Whether each group takes messages, and if not, why."""
    for group in facts.replicated():
        members, up = len(voters(group)), _up(group)
        majority = members // 2 + 1
        if group.state is GroupState.WRITABLE:
            continue
        down = ", ".join(name_of(group, node) for node in voters(group) if node.state is not NodeState.UP)
        if up == 0:
            yield error(
                "group-down",
                group.group,
                f"No node of {group.group} gives an answer: its messages can be neither sent nor read.",
                f"Start its nodes ({majority} of {members} are needed), and read their logs."
                f"{_hanging_words(facts, group)}",
            )
        elif up < majority:
            yield error(
                "no-quorum",
                group.group,
                f"Only {up} of {members} nodes of {group.group} answer, {majority} are needed: nothing can "
                "be written and no leader elected.",
                f"Start what is down: {down}. With one more of them the group goes on."
                f"{_hanging_words(facts, group)}",
            )
        else:
            yield _no_leader(facts, group, up, members)


def _hanging_words(facts: Facts, group: GroupView) -> str:
    """Which nodes cannot be started before their processes end; nothing where there are none."""
    found = [(name_of(group, node), facts.hanging.get(node.remoting_address or "")) for node in group.nodes]
    words = [
        name if listener.pid is None else f"{name} (pid {listener.pid} on this machine)"
        for name, listener in found
        if listener is not None
    ]
    return f" End the processes that hang and hold their ports first: {', '.join(words)}." if words else ""


def _no_leader(facts: Facts, group: GroupView, up: int, members: int) -> Finding:
    last = group.elections[-1] if group.elections else None
    since = f" since {words_of_ms(facts.now_ms - last.at_ms)}" if last and last.leader_id is None else ""
    if group.leader_id is not None:
        sentence = f"{group.leader_id} leads {group.group} and accepts no messages yet."
        remedy = "It may be catching up after its election; if it stays so, check its log and its disk."
    else:
        sentence = f"{up} of {members} nodes of {group.group} answer and none leads{since}."
        remedy = (
            "An election takes a second or two; check again. If it stays so, the nodes do not reach each "
            "other at their replication addresses, or too many are being repaired and do not vote."
        )
    return error("no-leader", group.group, sentence, remedy)


def check_members(facts: Facts) -> Iterator[Finding]:
    """Nodes that are down, behind, being repaired, or missing in the routes."""
    for group in facts.replicated():
        voting = voters(group)
        spare = _up(group) - (len(voting) // 2 + 1)
        for node in group.nodes:
            if node.id is None:
                continue  # an address only: `check_unclaimed`
            if group.membership is not None and (node.member is None or node.member.role == "joining"):
                continue  # `check_membership`
            if node.state is not NodeState.UP:
                yield from _silent(facts, group, node, spare if node in voting else len(voting))
                continue
            yield from _unsound(group, node)
            if node.broker_id is None and _is_nowhere_listed(facts, node):
                yield _not_in_route(facts, group, node)


def _is_nowhere_listed(facts: Facts, node: NodeView) -> bool:
    """Whether every name server that answers was asked in vain; `check_name_servers` reports a single one."""
    namesrvs = facts.view.namesrvs
    is_known = any(node.remoting_address in each.unlisted for each in namesrvs)
    return facts.view.namesrv.state is NodeState.UP and not is_known


def _silent(facts: Facts, group: GroupView, node: NodeView, spare: int) -> Iterator[Finding]:
    if _up(group) == 0:
        return
    listener = facts.hanging.get(node.remoting_address or "")
    if listener is None and node.push is not None and node.push.is_connected:
        yield error(
            "address-unreachable",
            name_of(group, node),
            f"{name_of(group, node)} replicates, but the address it gives to clients cannot be reached from "
            f"here: {node.problem}.",
            "Set brokerIP1 (and listenPort) of the node to an address that clients reach, and see whether a "
            "firewall blocks it.",
        )
        return
    seen = ""
    if node.last_known is not None:
        seen = f" (it answered last {words_of_ms(facts.now_ms - node.last_known.at_ms)} ago)"
    sentence = f"{name_of(group, node)} is {node.state}{seen}: {node.problem or 'its leader lost it'}."
    again = (
        f"tart it again (on its own machine: `ledgermq node {node.id or 'NODE'}`); it catches up by itself."
    )
    code, remedy = "node-down", f"S{again}"
    if listener is not None:
        code, remedy = "node-hangs", f"{end_it(str(node.remoting_address), listener)} Then s{again}"
        sentence = f"{name_of(group, node)} accepts connections and does not answer{seen}: {node.problem}."
    if spare > 0:
        yield warning(code, name_of(group, node), sentence, remedy)
    else:
        end = " If one more node fails, nothing can be written."
        yield error(code, name_of(group, node), sentence + (end if spare == 0 else ""), remedy)


def _unsound(group: GroupView, node: NodeView) -> Iterator[Finding]:
    if node.impairment is not None:
        yield warning(
            "node-impaired",
            name_of(group, node),
            f"{name_of(group, node)} is being repaired and does not vote: {node.impairment}.",
            "Its group repairs it; until then, keep the others running. If it happens again, test its disk.",
        )
    lag_ms, size = node.lag_ms or 0, node.lag_bytes or 0
    if lag_ms > LAG_MS_MAX or size > LAG_BYTES_MAX:
        yield warning(
            "replica-lagging",
            name_of(group, node),
            f"{name_of(group, node)} is {node.lag_entries} entries ({size / 1024**2:.1f} MiB, "
            f"{words_of_ms(lag_ms)}) behind its leader.",
            "It catches up if disk and network are faster than the writes; if the lag grows, check both.",
        )


def _not_in_route(facts: Facts, group: GroupView, node: NodeView) -> Finding:
    who = name_of(group, node)
    asked = ", ".join(each.address for each in facts.view.namesrvs if each.state is NodeState.UP)
    sentence = f"{who} runs, but the name server {asked} does not list it."
    remedy = "Check that its namesrvAddr is this name server, and search its log for failed registrations."
    if node.id == group.leader_id:
        return error("leader-not-in-route", who, f"{sentence} It leads, so no producer finds it.", remedy)
    return warning("not-in-route", who, sentence, remedy)


def check_setup(facts: Facts) -> Iterator[Finding]:
    """Settings that make a group weaker than it seems."""
    for group in facts.replicated():
        members = len(voters(group))
        if group.durability == "replicated":
            yield warning(
                "durability-replicated",
                group.group,
                f"{group.group} acknowledges messages that a majority has in memory, not yet on its disks: a "
                "power cut of all nodes at once loses the last ones.",
                "Set durability=persisted on every node, unless speed is worth that.",
            )
        if members == 1:
            yield warning(
                "single-node",
                group.group,
                f"{group.group} has one node: when it is down nothing is served; its disk is the only copy.",
                "Run it with three nodes: `ledgermq member add`.",
            )
        elif members == 2:
            yield warning(
                "two-members",
                group.group,
                f"{group.group} has two nodes that vote: when one of them is down, nothing can be written.",
                "Add a third one (`ledgermq member add`).",
            )
        elif members % 2 == 0:
            yield info(
                "even-members",
                group.group,
                f"{group.group} has {members} nodes, and tolerates no more failures than with {members - 1}.",
                "Run an odd number of nodes: `ledgermq member add` or `remove`.",
            )


def check_elections(facts: Facts) -> Iterator[Finding]:
    for group in facts.replicated():
        recent = [
            election
            for election in group.elections or ()
            if election.leader_id is not None and facts.now_ms - election.at_ms <= ELECTIONS_WINDOW_MS
        ]
        if len(recent) >= ELECTIONS_MAX:
            yield warning(
                "elections-frequent",
                group.group,
                f"{group.group} has elected {len(recent)} leaders in the last "
                f"{words_of_ms(ELECTIONS_WINDOW_MS)}, the last one {recent[-1].leader_id} in term "
                f"{recent[-1].term}{f' ({recent[-1].reason})' if recent[-1].reason else ''}.",
                "Each election stops writes for a moment. Do nodes restart, pause (swap), or lose packets?",
            )


def _up(group: GroupView) -> int:
    return sum(node.state is NodeState.UP for node in voters(group))


_REMEDY = (
    "Set brokerIP1 (and listenPort) of the node to the address that clients reach it at, and restart it."
)


def check_addresses(facts: Facts) -> Iterator[Finding]:
    is_local = all(is_loopback(each.address) for each in facts.view.namesrvs)
    for entry in facts.listed:
        if is_loopback(entry.address) and not is_local:
            yield error(
                "address-loopback",
                entry.address,
                f"{entry.broker_name} is registered as {entry.address}, which is every machine's own: "
                "clients elsewhere look for it on themselves.",
                _REMEDY,
            )
        status = facts.statuses.get(entry.address)
        if status is not None and status.remoting_address != entry.address:
            yield error(
                "address-differs",
                entry.address,
                f"The name server lists {entry.address}, where {status.node_id} of {status.broker_name} "
                f"answers, and its own address is {status.remoting_address}.",
                _REMEDY,
            )
        elif status is not None and status.broker_name != entry.broker_name:
            yield error(
                "address-of-another",
                entry.address,
                f"The name server lists {entry.address} for {entry.broker_name}, but {status.broker_name} "
                "answers there.",
                "Two brokers were given one address; give each its own listenPort or brokerIP1.",
            )


def check_unclaimed(facts: Facts) -> Iterator[Finding]:
    """Addresses in the routes that no node claims, while its group is well without them."""
    for group in facts.replicated():
        if not any(node.id is not None for node in group.nodes):
            continue
        for node in group.nodes:
            if (
                node.id is None
                and node.state is NodeState.DOWN
                and node.remoting_address not in facts.statuses
            ):
                yield error(
                    "address-unclaimed",
                    str(node.remoting_address),
                    f"The name server lists {node.remoting_address} for {group.broker_name}, and no node of "
                    f"it has that address: {node.problem}.",
                    "The name server removes a lost node after two minutes; if it stays, another process "
                    "registers it with a wrong brokerIP1 or listenPort.",
                )


def is_loopback(address: str) -> bool:
    """Of a `host:port`."""
    return addresses.is_loopback(address.rpartition(":")[0])


DISK_WARNING_RATIO: Final = 0.85
DISK_ERROR_RATIO: Final = 0.90
"""A node whose disk is that full accepts no messages, unless diskSpaceWarningLevelRatio is another limit."""
SKEW_MS_MAX: Final = 1_000
FILES_WARNING_RATIO: Final = 0.8
MEMORY_WARNING_RATIO: Final = 0.05
DISPATCH_BYTES_MAX: Final = 64 * 1024 * 1024


def check_disks(facts: Facts) -> Iterator[Finding]:
    for address, vitals in facts.vitals.items():
        ratio = vitals.runtime.ratio("commitLogDiskRatio")
        if ratio is None or ratio < DISK_WARNING_RATIO:
            continue
        free = vitals.runtime.capacity()[1]
        left = "" if free is None else f", {free / 1024**3:.1f} GiB are free"
        sentence = f"The disk of {address} is {ratio:.0%} full{left}."
        remedy = (
            "Free disk space, or keep messages for a shorter time (fileReservedTime). A node with a full "
            "disk accepts no messages."
        )
        make = error if ratio >= DISK_ERROR_RATIO else warning
        yield make("disk-near-full", address, sentence, remedy)


def check_clocks(facts: Facts) -> Iterator[Finding]:
    """Against the middle clock of all, so that one that is wrong does not make the others so."""
    for address, (ahead_ms, doubt_ms) in facts.clock_ahead_ms().items():
        if abs(ahead_ms) <= SKEW_MS_MAX + doubt_ms:
            continue
        way = "ahead of" if ahead_ms > 0 else "behind"
        yield warning(
            "clock-skew",
            address,
            f"The clock of {address} is {words_of_ms(abs(ahead_ms))} {way} the others.",
            "Synchronize it with NTP or chrony. Store times, delays, retention and searches by time follow "
            "the clock of the leader.",
        )


def check_versions(facts: Facts) -> Iterator[Finding]:
    for group in facts.view.groups:
        by_version: dict[str, list[str]] = {}
        for node in group.nodes:
            vitals = facts.vitals.get(node.remoting_address or "")
            version = vitals and vitals.runtime.text("productVersion", "brokerVersionDesc")
            if version:
                by_version.setdefault(version, []).append(node.id or str(node.remoting_address))
        if len(by_version) > 1:
            versions = "; ".join(
                f"{', '.join(nodes)}: {version}" for version, nodes in sorted(by_version.items())
            )
            yield warning(
                "versions-differ",
                group.group,
                f"The nodes of {group.group} run different versions ({versions}).",
                "That is fine during an upgrade only: install one version on all nodes.",
            )


def check_limits(facts: Facts) -> Iterator[Finding]:
    """Files and memory, where the broker reports them."""
    for address, vitals in facts.vitals.items():
        number = vitals.runtime.integer
        files, files_max = number("openFiles"), number("openFilesMax")
        if files is not None and files_max and files >= files_max * FILES_WARNING_RATIO:
            yield warning(
                "files-near-limit",
                address,
                f"{address} has {files} of {files_max} possible files and connections open.",
                "Raise its limit (ulimit -n, LimitNOFILE) before new clients are refused.",
            )
        available, total_kib = number("memoryAvailableBytes"), number("totalMemKBytes")
        if available is not None and total_kib and available < total_kib * 1024 * MEMORY_WARNING_RATIO:
            yield warning(
                "memory-low",
                address,
                f"The machine of {address} has {available / 1024**2:.0f} MiB of memory left.",
                "Find out what uses it: swapping makes disks slow and causes elections.",
            )


def check_dispatch(facts: Facts) -> Iterator[Finding]:
    for address, vitals in facts.vitals.items():
        behind = vitals.runtime.integer("dispatchBehindBytes") or 0
        if behind > DISPATCH_BYTES_MAX:
            yield warning(
                "dispatch-behind",
                address,
                f"{address} has {behind / 1024**2:.0f} MiB of its log that consumers cannot see yet.",
                "It waits for the commit, or builds its queues after a start; if it grows, check the CPU.",
            )


def check_quotas(facts: Facts) -> Iterator[Finding]:
    for address, vitals in facts.vitals.items():
        refused = vitals.runtime.text("quotaRefused")
        if refused:
            yield warning(
                "client-refused",
                address,
                f"{address} has refused requests in the last 5 minutes, of clients over their quotas: "
                f"{refused}.",
                "Check what these clients do (ledgermq_quota_name_refused_total). If they need as much, "
                "raise their quotas, or set quotaExemptAddresses (docs/security.md#quotas).",
            )


CERTIFICATE_WARNING_MS: Final = 30 * 86_400_000
CERTIFICATE_ENDS: Final = "certificateEndsMs."
"""Prefix of a broker's figures with the time at which a certificate ends (broker/monitoring/exposure.py)."""


def check_ports(facts: Facts) -> Iterator[Finding]:
    """Ports of name servers and of brokers beyond loopback, and who may use them."""
    for address, config in facts.name_servers.items():
        yield from _name_server_port(address, config)
    for address, vitals in facts.vitals.items():
        text = vitals.runtime.text
        host = text("clientBindAddress")
        if host is not None and not addresses.is_loopback(host):
            yield from _client_port(address, host, text("clientTlsMode"), text("accessControl"))
        metrics = text("metricsBindAddress")
        if metrics is not None and not is_loopback(metrics):
            yield info(
                "metrics-open",
                address,
                f"{address} shows its figures, with the names of topics and groups, to every client that "
                f"reaches {metrics}.",
                "Set metricsAddress to 127.0.0.1, or let only Prometheus reach the port.",
            )


def _name_server_port(address: str, config: Mapping[str, str]) -> Iterator[Finding]:
    """RocketMQ's own name server does not report its TLS."""
    host = config.get("bindAddress")
    if host is None or "tlsMode" not in config or addresses.is_loopback(host):
        return
    if config["tlsMode"] == "disabled":
        yield warning(
            "port-without-tls",
            address,
            f"The name server {address} (address {host}) can be reached from other machines and speaks plain "
            "text: routes can be changed on the way.",
            "Give it a certificate (--tls-cert, --tls-key), or let only a trusted network reach it.",
        )
    open_to_all = [
        *(() if config.get("accountsPath") else ("change its table and write permissions",)),
        *(() if config.get("brokerIdentities") else ("register brokers whose names are free",)),
    ]
    if config.get("tlsClientAuth") != "require" and open_to_all:
        yield warning(
            "namesrv-open",
            address,
            f"Every client that reaches the name server {address} (address {host}) may "
            f"{', and '.join(open_to_all)}.",
            "Ask for certificates (--tls-client-auth require), or list the brokers (--broker-identity) and "
            "give administrators accounts (--accounts), or let only a trusted network reach it.",
        )


def _client_port(address: str, host: str, tls_mode: str | None, access: str | None) -> Iterator[Finding]:
    where = f"{address} (bindAddress {host})"
    if tls_mode == "disabled":
        yield warning(
            "port-without-tls",
            address,
            f"{where} can be reached from other machines and speaks plain text: messages can be read and "
            "changed on the way.",
            "Give it a certificate (tlsCertPath, tlsKeyPath), or let only a trusted network reach it.",
        )
    elif tls_mode == "permissive":
        yield info(
            "port-takes-plain-text",
            address,
            f"{where} speaks TLS, and plain text with clients that ask for none.",
            "When all clients use TLS, set tlsMode=enforcing.",
        )
    if access == "off":
        yield warning(
            "access-control-off",
            address,
            f"Every client that reaches {where} may read, send, delete and configure.",
            "Switch on access control (docs/security.md), or let only a trusted network reach it.",
        )
    elif access == "authentication":
        yield info(
            "rights-unchecked",
            address,
            f"{where} checks who its clients are, and every user may do everything.",
            "Give users policies (`ledgermq policy create`), then `ledgermq access set --authorization`.",
        )


def check_certificates(facts: Facts) -> Iterator[Finding]:
    for address, vitals in facts.vitals.items():
        for figure in vitals.runtime.table:
            ends_ms = vitals.runtime.integer(figure) if figure.startswith(CERTIFICATE_ENDS) else None
            if ends_ms is None:
                continue
            key, left_ms = figure.removeprefix(CERTIFICATE_ENDS), ends_ms - facts.now_ms
            remedy = (
                "Replace the file; no restart is needed. `ledgermq cluster renew` makes the members' "
                "certificates of a group that LedgerMQ made."
            )
            if left_ms <= 0:
                yield error(
                    "certificate-expired",
                    address,
                    f"The certificate of {address} in {key} ended {words_of_ms(-left_ms)} ago: peers refuse "
                    "new connections with it.",
                    remedy,
                )
            elif left_ms <= CERTIFICATE_WARNING_MS:
                yield warning(
                    "certificate-ends-soon",
                    address,
                    f"The certificate of {address} in {key} ends in {words_of_ms(left_ms)}.",
                    remedy,
                )


def check_files(facts: Facts) -> Iterator[Finding]:
    for address, vitals in facts.vitals.items():
        paths = vitals.runtime.text("readableByOthers")
        if paths is not None:
            yield warning(
                "files-readable",
                address,
                f"Every user of the machine of {address} can read {paths}.",
                "Remove the rights of other users: chmod -R o= on the folder, and on each key.",
            )


LAG_HIGH: Final = 100_000
GROWTH_MIN: Final = 10
DLQ_FRESH_MS: Final = 3_600_000
DLQ_OLD_MS: Final = 3 * 86_400_000


def check_consumers(facts: Facts) -> Iterator[Finding]:
    for group in facts.groups or ():
        lag = group.lag
        if group.is_system or not lag:
            continue
        if group.consume_enabled is False:
            yield warning(
                "consuming-disabled",
                group.group,
                f"{group.group} is not allowed to consume and is {lag} messages behind.",
                f"To allow it again: `ledgermq group edit {group.group} --enable`.",
            )
        elif group.presence is GroupPresence.OFFLINE:
            yield warning(
                "consumer-dead",
                group.group,
                f"{group.group} is {lag} messages behind, and no consumer of it is connected.",
                f"Start its consumers. If it is not needed any more: `ledgermq group delete {group.group}`.",
            )
        elif group.presence is GroupPresence.ONLINE:
            yield from _slow(facts, group.group, lag)


def _slow(facts: Facts, group: str, lag: int) -> Iterator[Finding]:
    before = facts.lag_before.get(group)
    if before is not None and lag - before >= GROWTH_MIN:
        yield warning(
            "lag-growing",
            group,
            f"The lag of {group} grew from {before} to {lag} messages within {words_of_ms(facts.sample_ms)}.",
            "Its consumers are slower than the producers: add consumers (up to the number of queues), or see "
            f"what they wait for (`ledgermq group running {group}`).",
        )
    elif lag > LAG_HIGH:
        yield warning(
            "lag-high",
            group,
            f"{group} is {lag} messages behind, though its consumers are connected.",
            f"Does the lag shrink (`ledgermq watch`)? What do they do (`ledgermq group running {group}`)?",
        )


def check_dead_letters(facts: Facts) -> Iterator[Finding]:
    for dlq in facts.dlqs or ():
        if not dlq.count:
            continue
        look = (
            f"`ledgermq dlq show {dlq.group}` shows them, `ledgermq dlq resend {dlq.group}` sends them again."
        )
        newest_ms = None if dlq.newest_at_ms is None else facts.now_ms - dlq.newest_at_ms
        oldest_ms = None if dlq.oldest_at_ms is None else facts.now_ms - dlq.oldest_at_ms
        if newest_ms is not None and newest_ms <= DLQ_FRESH_MS:
            yield warning(
                "dlq-growing",
                dlq.group,
                f"{dlq.group} could not consume messages: {dlq.count} are in its dead letter queue, the last "
                f"came {words_of_ms(max(0, newest_ms))} ago.",
                f"Find out why its consumers fail. {look}",
            )
        elif oldest_ms is not None and oldest_ms >= DLQ_OLD_MS:
            yield info(
                "dlq-old",
                dlq.group,
                f"{dlq.count} dead letters of {dlq.group} wait, the oldest for {words_of_ms(oldest_ms)}.",
                f"Retention deletes them. {look}",
            )
