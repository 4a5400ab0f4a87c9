"""The plan of a local cluster, kept and laid over with options."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.errors import UserError
from ledgermq.local.plan import ClusterPlan, Scalar, load_plan, merge_plan, require_plan

NOTHING_GIVEN: dict[str, Any] = {
    "nodes": None,
    "groups": None,
    "namesrvs": None,
    "namesrv_port": None,
    "broker_port": None,
    "admin_port": None,
    "grpc_port": None,
    "settings": {},
}


def test_plan_gives_each_node_its_two_ports(tmp_path: Path) -> None:
    nodes = ClusterPlan(tmp_path, broker_port=20_000).nodes
    assert [(node.id, node.remoting_address, node.replication_address) for node in nodes] == [
        ("n0", "127.0.0.1:20000", "127.0.0.1:20003"),
        ("n1", "127.0.0.1:20010", "127.0.0.1:20013"),
        ("n2", "127.0.0.1:20020", "127.0.0.1:20023"),
    ]


def test_plan_saved_is_loaded_as_it_was(tmp_path: Path) -> None:
    settings: dict[str, Scalar] = {
        "durability": "replicated",
        "brokerName": 'ä "quoted" \\',
        "fileReservedTime": 48,
        "x": True,
    }
    plan = ClusterPlan(tmp_path, 5, 1000, 2000, 3000, settings, namesrv_count=2, group_count=3)
    plan.save()
    assert load_plan(tmp_path) == plan
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.toml"]


def test_further_name_servers_have_the_next_ports_and_the_first_keeps_its_name(tmp_path: Path) -> None:
    ClusterPlan(tmp_path, namesrv_port=20_000).save()
    plan = merge_plan(load_plan(tmp_path), tmp_path, **(NOTHING_GIVEN | {"namesrvs": 3}))
    assert [(each.name, each.address) for each in plan.namesrvs] == [
        ("namesrv", "127.0.0.1:20000"),
        ("namesrv-2", "127.0.0.1:20001"),
        ("namesrv-3", "127.0.0.1:20002"),
    ]
    assert plan.namesrv_address == "127.0.0.1:20000;127.0.0.1:20001;127.0.0.1:20002"
    taken = replace(plan, broker_port=20_002)
    with pytest.raises(UserError, match=r"for the name server namesrv-3 .* and for clients of n0"):
        taken.ports()


def test_further_groups_have_broker_names_nodes_and_ports_of_their_own(tmp_path: Path) -> None:
    ClusterPlan(tmp_path, node_count=2, broker_port=20_000, joined=(2,)).save()
    plan = merge_plan(load_plan(tmp_path), tmp_path, **(NOTHING_GIVEN | {"groups": 2}))
    plan.save()
    assert plan == load_plan(tmp_path)
    assert [(group.broker_name, group.name) for group in plan.groups] == [
        ("broker-a",) * 2,
        ("broker-b",) * 2,
    ]
    assert [[node.id for node in group.nodes] for group in plan.groups] == [
        ["n0", "n1", "n2"],
        ["n10", "n11"],
    ]
    assert [node.remoting_port for node in plan.nodes] == [20_000, 20_010, 20_020, 20_100, 20_110]
    assert [peer.id for peer in plan.peers_of(plan.node("n10"))] == ["n10", "n11"]
    assert [peer.id for peer in plan.peers_of(plan.node("n2"))] == ["n0", "n1", "n2"]
    assert [node.id for node in plan.with_node("n12").without("n10").groups[1].nodes] == ["n11", "n12"]
    with pytest.raises(UserError, match="they are n0 to n8, n10 to n18"):
        plan.with_node("n9")
    assert "version = 2\n" in (tmp_path / "cluster.toml").read_text(), "0.1.0 would start its nodes only"


def test_groups_may_not_become_fewer_or_share_a_name(tmp_path: Path) -> None:
    kept = ClusterPlan(tmp_path, group_count=2)
    with pytest.raises(UserError, match="has 2 groups, and --groups 1 would leave out messages"):
        merge_plan(kept, tmp_path, **(NOTHING_GIVEN | {"groups": 1}))
    given = NOTHING_GIVEN | {"groups": 3, "settings": {"dLegerGroup": "g"}}
    with pytest.raises(UserError, match="dLegerGroup cannot be set"):
        merge_plan(None, tmp_path, **given)
    with pytest.raises(UserError, match="dLegerGroup cannot be set"):
        merge_plan(kept, tmp_path, **(given | {"groups": None}))
    named = merge_plan(None, tmp_path, **(NOTHING_GIVEN | {"groups": 2, "settings": {"brokerName": "eu"}}))
    assert [group.name for group in named.groups] == ["eu", "eu-b"]


def test_a_removed_group_is_gone_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, node_count=1, joined=(11,)).with_group()
    assert [node.id for node in plan.nodes] == ["n0", "n10", "n11"]
    smaller = plan.without_group("broker-b")
    smaller.save()
    assert load_plan(tmp_path) == smaller
    assert [node.id for node in smaller.nodes] == ["n0"]
    grown = smaller.with_group()
    assert [(group.name, group.preferred_leader) for group in grown.groups] == [
        ("broker-a", "n0"),
        ("broker-c", "n20"),
    ]
    assert grown.group_of(grown.node("n20")).name == "broker-c"
    wanted = merge_plan(smaller, tmp_path, **(NOTHING_GIVEN | {"groups": 2}))
    assert wanted.groups == grown.groups
    with pytest.raises(UserError, match="they are n0 to n8, n20 to n28"):
        grown.with_node("n12")
    with pytest.raises(UserError, match="has 2 groups, and --groups 1"):
        merge_plan(grown, tmp_path, **(NOTHING_GIVEN | {"groups": 1}))


def test_the_only_group_stays_and_there_are_nine_at_most(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="broker-a is the only group"):
        ClusterPlan(tmp_path).without_group("broker-a")
    with pytest.raises(UserError, match=r"has no group broker-x; its groups are broker-a, broker-b\."):
        ClusterPlan(tmp_path, group_count=2).without_group("broker-x")
    removed = ClusterPlan(tmp_path, group_count=9, removed_groups=(3,))
    with pytest.raises(UserError, match="can have no more"):
        removed.with_group()
    with pytest.raises(UserError, match="9 groups in all"):
        merge_plan(removed, tmp_path, **(NOTHING_GIVEN | {"groups": 9}))


def test_a_group_that_there_never_was_cannot_be_removed_in_the_file(tmp_path: Path) -> None:
    ClusterPlan(tmp_path).save()
    file = tmp_path / "cluster.toml"
    file.write_text(file.read_text().replace("groups = 1", "groups = 1\nremovedGroups = [4]"))
    with pytest.raises(UserError, match="removedGroups"):
        load_plan(tmp_path)


def test_plan_of_an_earlier_release_has_one_name_server(tmp_path: Path) -> None:
    text = "version = 1\nnodes = 3\nnamesrvPort = 9000\nbrokerPort = 9100\nadminPort = 0\n"
    (tmp_path / "cluster.toml").write_text(text)
    plan = load_plan(tmp_path)
    assert plan is not None
    assert plan.namesrv_address == "127.0.0.1:9000"


def test_load_plan_none_there(tmp_path: Path) -> None:
    assert load_plan(tmp_path) is None
    with pytest.raises(UserError, match=r"there is no cluster in .*ledgermq up --data"):
        require_plan(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = 3\n", "version 3"),
        ("version = \n", "not a TOML file"),
        ("version = 1\nnodes = 3\n", "lacks a number"),
        ('version = 1\nnodes = "3"\nnamesrvPort = 1\nbrokerPort = 2\nadminPort = 3\n', "lacks a number"),
    ],
)
def test_load_plan_damaged_is_a_sentence_that_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "cluster.toml").write_text(text)
    with pytest.raises(UserError, match=words) as raised:
        load_plan(tmp_path)
    assert "cluster.toml" in str(raised.value)


def test_merge_plan_new_cluster_takes_defaults(tmp_path: Path) -> None:
    assert merge_plan(None, tmp_path, **NOTHING_GIVEN) == ClusterPlan(tmp_path, 3, 9876, 10911, 8080)


def test_merge_plan_other_number_of_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 3 nodes, --nodes 5 conflicts"):
        merge_plan(ClusterPlan(tmp_path, 3), tmp_path, **{**NOTHING_GIVEN, "nodes": 5})


def test_merge_plan_what_is_given_wins_over_what_was_kept(tmp_path: Path) -> None:
    kept = ClusterPlan(tmp_path, 3, 1000, 2000, 3000, {"durability": "persisted", "fileReservedTime": 48})
    given = {**NOTHING_GIVEN, "nodes": 3, "admin_port": 4000, "settings": {"durability": "replicated"}}
    assert merge_plan(kept, tmp_path, **given) == ClusterPlan(
        tmp_path, 3, 1000, 2000, 4000, {"durability": "replicated", "fileReservedTime": 48}
    )


def test_without_admin_and_grpc_their_ports_belong_to_others(tmp_path: Path) -> None:
    """0 is kept: a cluster that was made without them goes on without them."""
    plan = merge_plan(None, tmp_path, **{**NOTHING_GIVEN, "admin_port": 0, "grpc_port": 0})
    assert (plan.admin_url, plan.grpc_address) == (None, None)
    words = ("admin", "gRPC")
    assert [purpose for purpose in plan.ports().values() if any(word in purpose for word in words)] == []
    plan.save()
    assert merge_plan(load_plan(tmp_path), tmp_path, **NOTHING_GIVEN) == plan


def test_ports_that_collide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"port 10914 would be used twice: .*admin.*replication of n0"):
        ClusterPlan(tmp_path, admin_port=10914).ports()


def test_ports_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"port 65538 for replication of n0 .*not between"):
        ClusterPlan(tmp_path, 1, broker_port=65535).ports()


def test_node_unknown_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no node n7; its nodes are n0, n1, n2"):
        ClusterPlan(tmp_path).node("n7")
