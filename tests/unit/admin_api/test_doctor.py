"""Each check on the cluster that has just its fault, and on the one that has none."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from admin_api.cluster.reader import Answer, Memory, assemble
from admin_api.cluster.schemas import GrpcEndpointView, NamesrvView, NodeState
from admin_api.dead_letters.queues import DlqView
from admin_api.groups.overview import ConsumerGroupItem, GroupPresence
from admin_api.health_checks.checks import CERTIFICATE_ENDS, is_loopback
from admin_api.health_checks.facts import Facts, Finding, Listener, Severity, Vitals, words_of_ms
from admin_api.health_checks.service import examine
from admin_api.sources.broker_admin import Runtime
from admin_api.sources.brokers import Listed
from broker.admin.types import ElectionView, NodeRole, NodeStatusMessage
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS
from tests.unit.admin_api.node_samples import ADDRESSES, listed, node_status, peer

NOW_MS = 10_000_000_000
DAY_MS = 86_400_000


def statuses(**leader: Any) -> dict[str, NodeStatusMessage]:
    """n0 leads n1 and n2; all is well unless the leader's facts say otherwise."""
    leader.setdefault("peers", (peer("n1", is_connected=True), peer("n2", is_connected=True)))
    followers = {
        name: node_status(name, NodeRole.FOLLOWER, peers=tuple(peer(o) for o in ADDRESSES if o != name))
        for name in ("n1", "n2")
    }
    return {"n0": node_status("n0", NodeRole.LEADER, **leader), **followers}


def facts(
    up: dict[str, NodeStatusMessage] | None = None,
    entries: list[Listed] | None = None,
    namesrv: str = NAMESRV_ADDRESS,
    is_namesrv_up: bool = True,
    memory: Memory | None = None,
    endpoints: Sequence[GrpcEndpointView] = (),
    **others: Any,
) -> Facts:
    """A look at the nodes that are `up`; who is listed and not up gave no answer."""
    up = statuses() if up is None else up
    entries = listed("n0", "n1", "n2") if entries is None else entries
    answers = {
        address: Answer(address, None, f"{address} cannot be reached") for address in ADDRESSES.values()
    }
    answers |= {status.remoting_address: Answer(status.remoting_address, status) for status in up.values()}
    state = NodeState.UP if is_namesrv_up else NodeState.DOWN
    view = assemble(
        [
            NamesrvView(address=namesrv, state=state, problem=None if is_namesrv_up else "refused"),
            *others.pop("namesrvs", ()),
        ],
        entries,
        answers,
        memory or Memory(10),
        NOW_MS,
        endpoints,
    )
    said = {status.remoting_address: status for status in up.values()}
    others.setdefault("statuses", said)
    return Facts(view=view, listed=entries, **others)


def vitals(**figures: str) -> Vitals:
    return Vitals(Runtime(figures), NOW_MS, NOW_MS + 2)


def only(found: Facts) -> Finding:
    """The one finding there is."""
    (finding,) = examine(found)
    assert finding.sentence.endswith(".")
    assert finding.remedy
    return finding


def code_of(found: Facts) -> tuple[str, Severity, str]:
    finding = only(found)
    return finding.code, finding.severity, finding.subject


def test_a_cluster_that_is_well_has_no_finding() -> None:
    sound = vitals(
        commitLogDiskRatio="0.5",
        clockMs=str(NOW_MS),
        brokerVersionDesc="LedgerMQ",
        openFiles="40",
        openFilesMax="1024",
        memoryAvailableBytes=str(2**30),
        totalMemKBytes="4194304",
        dispatchBehindBytes="0",
    )
    dlq = DlqView(
        group="g", topic="%DLQ%g", count=3, oldest_at_ms=NOW_MS - DAY_MS, newest_at_ms=NOW_MS - DAY_MS
    )
    assert (
        examine(
            facts(
                vitals=dict.fromkeys(ADDRESSES.values(), sound),
                groups=[consumer_group(lag=0, presence=GroupPresence.OFFLINE), consumer_group(lag=50)],
                dlqs=[dlq],
            )
        )
        == []
    )


def test_a_silent_name_server() -> None:
    assert code_of(facts(is_namesrv_up=False)) == ("namesrv-silent", Severity.ERROR, NAMESRV_ADDRESS)


def test_an_endpoint_for_grpc_clients_that_is_down() -> None:
    endpoints = [
        GrpcEndpointView(address="127.0.0.1:8081", state=NodeState.DOWN, problem="refused"),
        GrpcEndpointView(address="127.0.0.1:8082", state=NodeState.UP),
    ]
    found = code_of(facts(endpoints=endpoints))
    assert found == ("grpc-endpoint-down", Severity.WARNING, "127.0.0.1:8081")


def test_nobody_registered() -> None:
    assert code_of(facts({}, [])) == ("no-broker", Severity.ERROR, NAMESRV_ADDRESS)


def test_no_quorum_names_what_to_start() -> None:
    alone = node_status("n1", NodeRole.CANDIDATE, leader_id=None, peers=(peer("n0"), peer("n2")))
    first, *others = examine(facts({"n1": alone}))
    assert (first.code, first.severity) == ("no-quorum", Severity.ERROR)
    assert "Only 1 of 3 nodes of group-a answer, 2 are needed" in first.sentence
    assert "n0 of group-a, n2 of group-a" in first.remedy
    assert {other.code for other in others} == {"node-down"}


def test_no_node_answers() -> None:
    assert code_of(facts({})) == ("group-down", Severity.ERROR, "broker-a")


def test_nobody_leads_though_a_majority_is_up() -> None:
    lost = ElectionView(at_ms=NOW_MS - 42_000, term=4, leader_id=None, reason="time-out")
    up = {
        name: node_status(name, NodeRole.CANDIDATE, leader_id=None, elections=(lost,), peers=peers)
        for name, peers in {
            "n0": (peer("n1"), peer("n2")),
            "n1": (peer("n0"), peer("n2")),
            "n2": (peer("n0"), peer("n1")),
        }.items()
    }
    finding = only(facts(up))
    assert finding.code == "no-leader"
    assert "3 of 3 nodes of group-a answer and none leads since 42 s" in finding.sentence


def test_a_leader_that_takes_nothing_yet() -> None:
    finding = only(facts(statuses(is_writable=False)))
    assert finding.sentence == "n0 leads group-a and accepts no messages yet."


def test_a_node_down_of_three_leaves_none_to_spare() -> None:
    up = statuses(peers=(peer("n1", is_connected=True), peer("n2", is_connected=False)))
    memory = Memory(10)
    memory.remember(up.pop("n2"), NOW_MS - 180_000)
    finding = only(facts(up, memory=memory))
    assert (finding.code, finding.severity) == ("node-down", Severity.ERROR)
    assert finding.sentence.startswith("n2 of group-a is down (it answered last 3 min ago): 127.0.0.1:10931")
    assert finding.sentence.endswith("If one more node fails, nothing can be written.")


def test_a_node_that_replicates_and_cannot_be_reached() -> None:
    up = statuses()
    del up["n2"]
    finding = only(facts(up))
    assert (finding.code, finding.subject) == ("address-unreachable", "n2 of group-a")


N2 = ADDRESSES["n2"]


@pytest.mark.parametrize(
    ("listener", "remedies"),
    [
        (
            Listener(),
            ["Find it on its own machine (`ss -ltnp 'sport = :10931'`)", "kill -KILL", "Then start it"],
        ),
        (Listener(4711), ["on this machine, pid 4711,", "end it (kill -KILL 4711)", "Then start it again"]),
        (Listener(4711, is_stopped=True), ["pid 4711, is stopped", "kill -CONT 4711", "Then start it again"]),
    ],
)
def test_a_node_that_hangs_is_ended_before_it_is_started(listener: Listener, remedies: list[str]) -> None:
    """A second process would find its ports taken. Its leader may not have lost it yet."""
    up = statuses()
    del up["n2"]
    finding = only(facts(up, hanging={N2: listener}))
    assert (finding.code, finding.subject) == ("node-hangs", "n2 of group-a")
    assert "n2 of group-a accepts connections and does not answer: 127.0.0.1:10931" in finding.sentence
    places = [finding.remedy.find(remedy) for remedy in remedies]
    assert -1 not in places, finding.remedy
    assert places == sorted(places)
    assert "`ledgermq node n2`" in finding.remedy


def test_a_group_whose_nodes_hang_has_their_processes_ended_first() -> None:
    alone = node_status("n1", NodeRole.CANDIDATE, leader_id=None, peers=(peer("n0"), peer("n2")))
    first = examine(facts({"n1": alone}, hanging={N2: Listener(7)}))[0]
    assert first.code == "no-quorum"
    assert first.remedy.endswith("hold their ports first: n2 of group-a (pid 7 on this machine).")
    finding = only(facts({}, hanging={N2: Listener()}))
    assert (finding.code, "hold their ports first: " in finding.remedy) == ("group-down", True)


def test_a_name_server_that_hangs_is_ended_before_it_is_started() -> None:
    finding = only(facts(is_namesrv_up=False, hanging={NAMESRV_ADDRESS: Listener(7)}))
    assert (finding.code, "kill -KILL 7" in finding.remedy) == ("namesrv-silent", True)
    assert finding.remedy.find("kill -KILL 7") < finding.remedy.find("Then start it")


def test_a_replica_that_lags_or_is_repaired() -> None:
    late = peer("n1", is_connected=True, lag_entries=7, lag_bytes=100 * 2**20, lag_ms=90_000)
    up = statuses(peers=(late, peer("n2", is_connected=True)))
    finding = only(facts(up))
    assert finding.code == "replica-lagging"
    assert "n1 of group-a is 7 entries (100.0 MiB, 90 s) behind" in finding.sentence
    up = statuses()
    up["n2"] = up["n2"].model_copy(update={"impairment": "its vote file was lost"})
    assert code_of(facts(up)) == ("node-impaired", Severity.WARNING, "n2 of group-a")


@pytest.mark.parametrize(
    ("missing", "code", "severity"),
    [("n0", "leader-not-in-route", Severity.ERROR), ("n2", "not-in-route", Severity.WARNING)],
)
def test_a_node_that_the_name_server_does_not_list(missing: str, code: str, severity: Severity) -> None:
    entries = [entry for entry in listed("n0", "n1", "n2") if entry.address != ADDRESSES[missing]]
    assert code_of(facts(entries=entries)) == (code, severity, f"{missing} of group-a")


def test_what_makes_a_group_weaker_than_it_looks() -> None:
    up = {name: s.model_copy(update={"durability": "replicated"}) for name, s in statuses().items()}
    assert code_of(facts(up)) == ("durability-replicated", Severity.WARNING, "group-a")
    alone = {"n0": node_status("n0", NodeRole.LEADER)}
    assert code_of(facts(alone, listed("n0"))) == ("single-node", Severity.WARNING, "group-a")
    pair = statuses(peers=(peer("n1", is_connected=True),))
    pair = {name: s.model_copy(update={"peers": s.peers[:1]}) for name, s in pair.items() if name != "n2"}
    assert code_of(facts(pair, listed("n0", "n1"))) == ("two-members", Severity.WARNING, "group-a")


def test_elections_that_follow_one_another() -> None:
    elections = tuple(
        ElectionView(at_ms=NOW_MS - 60_000 * ago, term=9 - ago, leader_id="n0", reason="disconnected")
        for ago in (20, 3, 2, 1)
    )
    finding = only(facts(statuses(elections=elections)))
    assert finding.code == "elections-frequent"
    assert (
        "has elected 3 leaders in the last 10 min, the last one n0 in term 8 (disconnected)"
        in finding.sentence
    )
    assert examine(facts(statuses(elections=elections[:3]))) == []


def test_loopback_is_told_only_to_those_elsewhere() -> None:
    found = examine(facts(namesrv="10.0.0.5:9876"))
    assert {finding.code for finding in found} == {"address-loopback"}
    assert [finding.subject for finding in found] == list(ADDRESSES.values())
    assert [is_loopback(address) for address in ("localhost:1", "[::1]:2", "127.8.8.8:3", "broker:4")] == [
        True,
        True,
        True,
        False,
    ]


def test_an_address_where_another_answers() -> None:
    entries = [*listed("n0", "n1", "n2"), Listed("DefaultCluster", "broker-a", 7, "10.0.0.9:10911")]
    found = facts(entries=entries)
    elsewhere = {"10.0.0.9:10911": found.statuses[ADDRESSES["n1"]]}
    found = dataclasses.replace(found, statuses={**found.statuses, **elsewhere})
    finding = only(found)
    assert finding.code == "address-differs"
    assert "lists 10.0.0.9:10911, where n1 of broker-a answers, and its own address is" in finding.sentence
    other = statuses()["n2"].model_copy(update={"broker_name": "broker-b"})
    found = facts()
    found = dataclasses.replace(found, statuses={**found.statuses, ADDRESSES["n2"]: other})
    assert code_of(found) == ("address-of-another", Severity.ERROR, ADDRESSES["n2"])


def test_an_address_that_no_node_has() -> None:
    entries = [*listed("n0", "n1", "n2"), Listed("DefaultCluster", "broker-a", 7, "10.0.0.9:10911")]
    found = facts(entries=entries)
    group = found.view.groups[0]
    strange = [
        node.model_copy(update={"state": NodeState.DOWN, "problem": "10.0.0.9:10911 cannot be reached"})
        if node.id is None
        else node
        for node in group.nodes
    ]
    view = found.view.model_copy(update={"groups": [group.model_copy(update={"nodes": strange})]})
    codes = [finding.code for finding in examine(dataclasses.replace(found, view=view))]
    assert "address-unclaimed" in codes


@pytest.mark.parametrize(
    ("figures", "code", "severity"),
    [
        ({"commitLogDiskRatio": "0.8700"}, "disk-near-full", Severity.WARNING),
        ({"commitLogDiskRatio": "0.9000"}, "disk-near-full", Severity.ERROR),
        ({"openFiles": "820", "openFilesMax": "1024"}, "files-near-limit", Severity.WARNING),
        ({"memoryAvailableBytes": "1048576", "totalMemKBytes": "4194304"}, "memory-low", Severity.WARNING),
        ({"dispatchBehindBytes": str(2**27)}, "dispatch-behind", Severity.WARNING),
        ({"quotaRefused": "address 10.0.0.7"}, "client-refused", Severity.WARNING),
    ],
)
def test_what_a_machine_runs_out_of(figures: dict[str, str], code: str, severity: Severity) -> None:
    found = facts(vitals={ADDRESSES["n1"]: vitals(**figures)})
    assert code_of(found) == (code, severity, ADDRESSES["n1"])


def test_a_clock_that_differs_from_the_middle_one() -> None:
    clocks = {"n0": NOW_MS + 5, "n1": NOW_MS - 7_000, "n2": NOW_MS - 3}
    found = facts(vitals={ADDRESSES[name]: vitals(clockMs=str(clock)) for name, clock in clocks.items()})
    finding = only(found)
    assert (finding.code, finding.subject) == ("clock-skew", ADDRESSES["n1"])
    assert "is 7 s behind the others" in finding.sentence
    slow = {
        ADDRESSES[n]: dataclasses.replace(vitals(clockMs=str(c)), answered_at_ms=NOW_MS + 20_000)
        for n, c in clocks.items()
    }
    assert examine(facts(vitals=slow)) == [], "an answer that took 20 s says nothing of 7 s"


def test_versions_that_differ() -> None:
    told = {"n0": "5.3.0", "n1": "5.3.0", "n2": "5.1.4"}
    found = facts(vitals={ADDRESSES[n]: vitals(brokerVersionDesc=version) for n, version in told.items()})
    assert "(n2: 5.1.4; n0, n1: 5.3.0)" in only(found).sentence


def consumer_group(**values: Any) -> ConsumerGroupItem:
    fields: dict[str, Any] = dict.fromkeys(ConsumerGroupItem.model_fields)
    fields |= {"group": "billing", "brokers": ["broker-a"], "is_system": False, "is_lag_partial": False}
    fields |= {"presence": GroupPresence.ONLINE, "members": 1, "lag_by_topic": {}, "consume_enabled": True}
    return ConsumerGroupItem(**{**fields, **values})


@pytest.mark.parametrize(
    ("values", "before", "code"),
    [
        ({"lag": 5, "presence": GroupPresence.OFFLINE}, None, "consumer-dead"),
        ({"lag": 5, "consume_enabled": False}, None, "consuming-disabled"),
        ({"lag": 500_000}, None, "lag-high"),
        ({"lag": 500}, 400, "lag-growing"),
    ],
)
def test_consumers_that_do_not_keep_up(values: dict[str, Any], before: int | None, code: str) -> None:
    lag_before = {} if before is None else {"billing": before}
    found = facts(groups=[consumer_group(**values)], lag_before=lag_before, sample_ms=2000)
    assert code_of(found) == (code, Severity.WARNING, "billing")
    assert str(values["lag"]) in only(found).sentence


def test_consumers_nobody_could_ask_are_no_finding() -> None:
    unknown = consumer_group(lag=None, presence=GroupPresence.UNKNOWN)
    assert examine(facts(groups=[unknown, consumer_group(lag=9, presence=GroupPresence.UNKNOWN)])) == []


@pytest.mark.parametrize(
    ("newest_ms", "oldest_ms", "code"), [(60_000, 90_000, "dlq-growing"), (DAY_MS, 5 * DAY_MS, "dlq-old")]
)
def test_dead_letters(newest_ms: int, oldest_ms: int, code: str) -> None:
    dlq = DlqView(
        group="billing",
        topic="%DLQ%billing",
        count=4,
        newest_at_ms=NOW_MS - newest_ms,
        oldest_at_ms=NOW_MS - oldest_ms,
    )
    finding = only(facts(dlqs=[dlq]))
    assert finding.code == code
    assert "4" in finding.sentence
    assert "ledgermq dlq resend billing" in finding.remedy


def test_durations_in_words() -> None:
    asked = (850, 1500, 119_000, 180_000, 7_300_000, 3 * DAY_MS)
    assert [words_of_ms(ms) for ms in asked] == ["850 ms", "2 s", "119 s", "3 min", "2 h", "3 days"]


OPEN = {"clientBindAddress": "0.0.0.0"}


@pytest.mark.parametrize(
    ("tls_mode", "access", "code", "severity", "words"),
    [
        ("disabled", "authorization", "port-without-tls", Severity.WARNING, "plain text"),
        ("permissive", "accounts", "port-takes-plain-text", Severity.INFO, "tlsMode=enforcing"),
        ("enforcing", "off", "access-control-off", Severity.WARNING, "delete"),
        ("enforcing", "authentication", "rights-unchecked", Severity.INFO, "policies"),
    ],
)
def test_an_open_port_is_named(tls_mode: str, access: str, code: str, severity: Severity, words: str) -> None:
    address = ADDRESSES["n0"]
    found = facts(vitals={address: vitals(**OPEN, clientTlsMode=tls_mode, accessControl=access)})
    assert code_of(found) == (code, severity, address)
    assert words in only(found).sentence + only(found).remedy


@pytest.mark.parametrize(
    ("figure", "text", "code", "severity", "words"),
    [
        ("metricsBindAddress", "10.0.0.1:9100", "metrics-open", Severity.INFO, "10.0.0.1:9100"),
        ("readableByOthers", "/data/store/0", "files-readable", Severity.WARNING, "/data/store/0"),
        (f"{CERTIFICATE_ENDS}tlsCertPath", str(NOW_MS), "certificate-expired", Severity.ERROR, "tlsCertPath"),
        (
            f"{CERTIFICATE_ENDS}x",
            str(NOW_MS + 9 * DAY_MS),
            "certificate-ends-soon",
            Severity.WARNING,
            "9 days",
        ),
    ],
)
def test_what_is_open_to_others_is_named(
    figure: str, text: str, code: str, severity: Severity, words: str
) -> None:
    address = ADDRESSES["n0"]
    found = facts(vitals={address: vitals(**{figure: text})})
    assert code_of(found) == (code, severity, address)
    assert words in only(found).sentence


def test_what_is_protected_or_on_loopback_is_no_finding() -> None:
    well = {
        "clientBindAddress": "127.0.0.1",
        "clientTlsMode": "disabled",
        "accessControl": "off",
        "metricsBindAddress": "127.0.0.1:9100",
        "readableByOthers": "",
        "certificateEndsMs.tlsCertPath": str(NOW_MS + 400 * DAY_MS),
    }
    wide = OPEN | {"clientTlsMode": "enforcing", "accessControl": "authorization", "metricsBindAddress": ""}
    stock = {"brokerVersionDesc": "V5_4_0"}
    for figures in (well, wide, stock):
        assert examine(facts(vitals={ADDRESSES["n0"]: vitals(**figures)})) == []


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        ({}, ["port-without-tls", "namesrv-open"]),
        ({"tlsMode": "permissive"}, ["namesrv-open"]),
        ({"tlsMode": "enforcing", "tlsClientAuth": "require"}, []),
        ({"tlsMode": "enforcing", "brokerIdentities": "broker-a"}, ["namesrv-open"]),
        ({"tlsMode": "enforcing", "accountsPath": "a.toml"}, ["namesrv-open"]),
        ({"tlsMode": "enforcing", "brokerIdentities": "broker-a", "accountsPath": "a.toml"}, []),
        ({"bindAddress": "127.0.0.1"}, []),
    ],
)
def test_an_open_name_server_is_named(changed: dict[str, str], codes: list[str]) -> None:
    config = {"bindAddress": "10.0.0.9", "tlsMode": "disabled", "tlsClientAuth": "none"} | changed
    assert [found.code for found in examine(facts(name_servers={NAMESRV_ADDRESS: config}))] == codes
    stock = {NAMESRV_ADDRESS: {"bindAddress": "10.0.0.9"}}
    assert examine(facts(name_servers=stock)) == [], "RocketMQ's own does not report it"
