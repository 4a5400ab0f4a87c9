"""Each node's broker.toml, and what a user may put into it."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.config import load_config
from dledger.credentials import MemberCredentials
from ledgermq.errors import UserError
from ledgermq.local.cluster import write_files
from ledgermq.local.node_files import read_settings, write_node_files
from ledgermq.local.plan import ClusterPlan, load_plan, merge_plan
from ledgermq.local.processes import admin_command, namesrv_command
from remoting.client.tls import ClientTls
from remoting.tls import server_tls


def test_write_node_files_each_is_what_the_broker_reads(tmp_path: Path) -> None:
    plan = ClusterPlan(
        tmp_path, 3, 1000, 20_000, 3000, {"durability": "replicated", "fileReservedTime": "48"}
    )
    write_node_files(plan)
    config = load_config(tmp_path / "n1" / "broker.toml")
    assert (config.listen_port, config.dledger_self_id, config.namesrv_addr) == (
        20_010,
        "n1",
        "127.0.0.1:1000",
    )
    assert config.bind_address == "127.0.0.1"
    assert [(peer.id, peer.port) for peer in config.peers] == [("n0", 20_003), ("n1", 20_013), ("n2", 20_023)]
    assert config.store_path_root_dir == tmp_path / "n1" / "store"
    assert (config.durability, config.file_reserved_hours) == ("replicated", 48)


def test_each_group_prefers_another_of_its_nodes(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, node_count=2, group_count=3, has_replication_tls=False)
    write_node_files(plan)
    preferred = {load_config(node.config_file).preferred_leader_id for node in plan.nodes}
    assert preferred == {"n0", "n11", "n20"}
    assert load_config(tmp_path / "n10" / "broker.toml").preferred_leader_id == "n11"


def test_one_group_prefers_no_leader(tmp_path: Path) -> None:
    write_node_files(ClusterPlan(tmp_path))
    assert load_config(tmp_path / "n0" / "broker.toml").preferred_leader_id is None


def test_nodes_know_each_other_unless_that_is_switched_off(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, node_count=2, settings={"brokerName": "b"})
    write_files(plan)
    config = load_config(tmp_path / "n1" / "broker.toml")
    assert config.replication_tls is not None
    MemberCredentials.load(config.replication_tls)
    assert (tmp_path / "certificates" / "ca.key").stat().st_mode & 0o777 == 0o600
    write_files(replace(plan, has_replication_tls=False))
    assert load_config(tmp_path / "n1" / "broker.toml").replication_tls is None


def test_a_folder_of_an_earlier_version_gets_certificates(tmp_path: Path) -> None:
    ClusterPlan(tmp_path).save()
    file = tmp_path / "cluster.toml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "replicationTls" not in line))
    plan = load_plan(tmp_path)
    assert plan is not None
    assert plan.has_replication_tls
    write_files(plan)
    assert (tmp_path / "certificates" / "n2.pem").exists()


def test_the_plan_keeps_that_certificates_are_off(tmp_path: Path) -> None:
    options: dict[str, Any] = dict.fromkeys(
        ("nodes", "groups", "namesrvs", "namesrv_port", "broker_port", "admin_port", "grpc_port")
    )
    off = merge_plan(None, tmp_path, **options, settings={}, has_replication_tls=False)
    off.save()
    assert load_plan(tmp_path) == off
    assert not merge_plan(load_plan(tmp_path), tmp_path, **options, settings={}).has_replication_tls
    assert merge_plan(off, tmp_path, **options, settings={}, has_replication_tls=True).has_replication_tls


def test_write_node_files_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"maxMesageSize is not known.*maxMessageSize"):
        write_node_files(ClusterPlan(tmp_path, settings={"maxMesageSize": 5}))


def test_read_settings_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('maxMessageSize = 1000\nbrokerClusterName = "C"\nautoCreateTopicEnable = false\n')
    assert read_settings(file, ["maxMessageSize=2000", " regionId = r "]) == {
        "maxMessageSize": "2000",
        "brokerClusterName": "C",
        "autoCreateTopicEnable": False,
        "regionId": "r",
    }


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("maxMessageSize", "not of the form KEY=VALUE"),
        ("listenPort=1", "listenPort cannot be set for a local cluster: use --broker-port"),
        ("dLegerSelfId=n0", "each node has its own"),
        ("tlsMode=enforcing", "use --tls"),
    ],
)
def test_read_settings_what_cannot_be_set_is_refused(override: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_settings(None, [override])


def test_read_settings_table_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[broker]\nmaxMessageSize = 1\n")
    with pytest.raises(UserError, match=r"broker in .*must be a plain value"):
        read_settings(file, [])


def test_node_file_is_plain_toml(tmp_path: Path) -> None:
    write_node_files(ClusterPlan(tmp_path, 1))
    assert tomllib.loads((tmp_path / "n0" / "broker.toml").read_text())["enableDLegerCommitLog"] is True


def test_full_disk_takes_no_messages_of_a_local_cluster_unless_that_is_said(tmp_path: Path) -> None:
    write_node_files(ClusterPlan(tmp_path / "plain"))
    assert not load_config(tmp_path / "plain/n0/broker.toml").clean_forcibly_enable
    write_node_files(ClusterPlan(tmp_path / "said", settings={"cleanFileForciblyEnable": "true"}))
    assert load_config(tmp_path / "said/n0/broker.toml").clean_forcibly_enable


def test_a_cluster_with_tls_has_certificates_that_all_its_processes_use(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, settings={"tlsMode": "enforcing"}, has_replication_tls=False)
    write_files(plan)
    folder = tmp_path / "certificates"
    names = ("ca", "namesrv", "n0", "n1", "n2")
    assert {path.name for path in folder.iterdir()} == {
        f"{n}.{kind}" for n in names for kind in ("pem", "key")
    }
    config = load_config(tmp_path / "n1" / "broker.toml")
    assert config.client_tls == ClientTls(folder / "ca.pem", folder / "n1.pem", folder / "n1.key")
    assert config.replication_tls is None
    assert server_tls(config.server_tls) is not None
    options = " ".join(namesrv_command(plan, plan.namesrvs[0]).argv)
    assert f"--tls-mode enforcing --tls-cert {folder}/namesrv.pem --tls-key {folder}/namesrv.key" in options
    assert f"--broker-tls-ca {folder}/ca.pem" in " ".join(admin_command(plan).argv)


def test_a_cluster_without_tls_for_clients_serves_them_over_plain_text(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, settings={"tlsMode": "disabled"})
    write_files(plan)
    config = load_config(tmp_path / "n1" / "broker.toml")
    assert config.client_tls is None
    assert server_tls(config.server_tls) is None
    assert "--tls-mode permissive" in " ".join(namesrv_command(plan, plan.namesrvs[0]).argv)
    assert "-tls" not in " ".join(admin_command(plan).argv)


@pytest.mark.parametrize("settings", [{}, {"tlsMode": "enforcing"}])
def test_the_name_server_knows_the_nodes_by_their_certificates(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    plan = ClusterPlan(tmp_path, settings={**settings, "brokerName": "b-1", "dLegerGroup": "group|1"})
    write_files(plan)
    folder = tmp_path / "certificates"
    options = " ".join(namesrv_command(plan, plan.namesrvs[0]).argv)
    assert f"--tls-ca {folder}/ca.pem --tls-client-auth optional" in options
    uris = ",".join(f"certificate:ledgermq://group%7C1/{node}" for node in ("n0", "n1", "n2"))
    assert f"--broker-identity b-1={uris}" in options
    shown = load_config(tmp_path / "n2" / "broker.toml").namesrv_tls
    assert shown == ClientTls(folder / "ca.pem", folder / "n2.pem", folder / "n2.key")


def test_a_cluster_without_any_certificates_registers_by_its_address(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, has_replication_tls=False)
    write_files(plan)
    assert load_config(tmp_path / "n0" / "broker.toml").namesrv_tls is None
    options = " ".join(namesrv_command(plan, plan.namesrvs[0]).argv)
    assert "-tls" not in options
    assert "--broker-identity" not in options


def test_certificates_of_ones_own_without_one_of_the_name_server_are_used_as_they_are(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, 1)
    write_files(plan)
    for name in ("ca.key", "namesrv.pem", "namesrv.key"):
        (tmp_path / "certificates" / name).unlink()
    write_files(plan)
    assert not plan.has_known_brokers
    config = load_config(tmp_path / "n0" / "broker.toml")
    assert config.replication_tls is not None
    assert config.namesrv_tls is None
    assert "-tls" not in " ".join(namesrv_command(plan, plan.namesrvs[0]).argv)
