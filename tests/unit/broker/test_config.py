"""The configuration: RocketMQ's keys, checked values, and refusals a person can act on."""

from pathlib import Path

import pytest

from broker.config import KNOWN_KEYS, BrokerConfig, ConfigError, Peer, config_from, load_config
from broker.store.message_log import engine_config
from remoting.client.tls import ClientTls

PEERS = "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913"
FAR_PEERS = "n0-10.0.0.1:40911;n1-10.0.0.2:40911"
FILES = ["replicationTlsCertPath=n0.pem", "replicationTlsKeyPath=n0.key", "replicationTlsCaPath=ca.pem"]
UNSET = {"preferredLeaderId", *(file.partition("=")[0] for file in FILES)}
UNSET |= {"tlsMode", "tlsCertPath", "tlsKeyPath", "tlsTrustCertPath"}


def test_defaults_are_a_group_of_one_on_loopback() -> None:
    config = load_config(None)
    assert config.peers == (Peer(id="n0", host="127.0.0.1", port=10914),)
    assert (config.bind_address, config.broker_address) == ("127.0.0.1", "127.0.0.1:10911")
    assert config.durability == "persisted"
    assert config.group == "broker-a"


def test_overrides_lie_over_the_file_and_texts_become_values(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('brokerName = "b1"\nlistenPort = 20000\nautoCreateTopicEnable = true\n', encoding="utf-8")
    config = load_config(file, ["listenPort=20010", "autoCreateTopicEnable=false", "dLegerPeers=" + PEERS])
    assert (config.broker_name, config.listen_port, config.auto_create_topic_enable) == ("b1", 20010, False)
    assert [peer.id for peer in config.peers] == ["n0", "n1", "n2"]


def test_an_unknown_key_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(ConfigError, match=r"brokerClustername is not known.*brokerClusterName"):
        config_from({"brokerClustername": "x"})
    with pytest.raises(ConfigError, match="defaultTopicQueueNums"):
        config_from({"defaultTopicQueueNum": 4})


def test_python_field_names_are_no_keys() -> None:
    with pytest.raises(ConfigError, match="listen_port is not known"):
        config_from({"listen_port": 1})


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("listenPort", 70000, "listenPort = 70000"),
        ("listenPort", "abc", "listenPort = 'abc'"),
        ("maxMessageSize", 4 * 1024 * 1024 + 1, "maxMessageSize"),
        ("brokerIP1", "example.org", "IPv4"),
        ("brokerName", "a b", "letters"),
        ("brokerName", "", "may not be empty"),
        ("dLegerPeers", "n0:40911", "not of the form n0-host:port"),
        ("dLegerPeers", "n0-a:1;n0-b:2", "listed twice"),
        (
            "dLegerPeers",
            ";".join(f"n{number}-a:1" for number in range(10)),
            "10 members",
        ),
        ("dLegerPeers", "node-a:1", "one letter and a number"),
        ("dLegerPeers", "n1-a:1;n2-b:2", "not among dLegerPeers"),
        ("dLegerSelfId", "leader", "one letter and a number"),
        ("dLegerJoin", True, "dLegerJoin needs a group"),
        ("durability", "sometimes", "durability"),
        ("messageDelayLevel", "1s soon", "soon"),
        ("messageDelayLevel", "", "0 levels"),
        ("namesrvAddr", "localhost", "host:port"),
        ("electionTimeoutMinMs", 2000, "above electionTimeoutMaxMs"),
        ("heartbeatIntervalMs", 800, "at least twice"),
        ("mappedFileSizeCommitLog", 4096, "mappedFileSizeCommitLog"),
        ("tlsMode", "sometimes", "tlsMode"),
        ("tlsMode", "enforcing", "tlsCertPath.*mode enforcing needs a certificate"),
        ("tlsKeyPath", "k.pem", "without its certificate"),
        ("tlsClientAuth", "require", "tlsTrustCertPath.*needs the authorities"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(key: str, value: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config_from({key: value})


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_config(tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("key = = 1", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a TOML file"):
        load_config(bad)
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        load_config(None, ["listenPort"])


def test_the_follower_id_follows_the_member_number() -> None:
    assert config_from({"dLegerSelfId": "n2", "dLegerPeers": PEERS}).follower_broker_id == 3


def test_several_name_servers() -> None:
    assert config_from({"namesrvAddr": "10.0.0.1:9876; 10.0.0.2:9876;"}).name_servers == (
        "10.0.0.1:9876",
        "10.0.0.2:9876",
    )


def test_the_properties_text_shows_every_key_by_its_name() -> None:
    shown = BrokerConfig().to_properties()
    assert set(shown) == set(KNOWN_KEYS) - UNSET
    assert shown["autoCreateTopicEnable"] == "true"
    assert shown["listenPort"] == "10911"


@pytest.mark.parametrize(
    ("keys", "address"),
    [
        ([f"dLegerPeers={FAR_PEERS}"], "10.0.0.2 in dLegerPeers"),
        (["replicationBindAddress=0.0.0.0"], "0.0.0.0 for replication"),
        (["replicationBindAddress=broker.example"], "broker.example for replication"),
        ([f"dLegerPeers={PEERS}", "replicationBindAddress=::"], ":: for replication"),
    ],
)
def test_replication_beyond_this_machine_needs_certificates(keys: list[str], address: str) -> None:
    with pytest.raises(ConfigError, match=rf"{address} is beyond this machine.*ledgermq cluster init"):
        load_config(None, keys)
    assert load_config(None, [*keys, *FILES]).replication_tls is not None
    load_config(None, [*keys, "enableDLegerCommitLog=false"])


@pytest.mark.parametrize(
    ("keys", "host"),
    [
        ([], "127.0.0.1"),
        (["bindAddress=127.0.0.7"], "127.0.0.7"),
        (["bindAddress=0.0.0.0"], "127.0.0.1"),
        (["bindAddress=0.0.0.0", f"dLegerPeers={PEERS}"], "127.0.0.1"),
        (["bindAddress=0.0.0.0", *FILES], "0.0.0.0"),
        (["bindAddress=0.0.0.0", f"dLegerPeers={FAR_PEERS}", *FILES], "0.0.0.0"),
        (["bindAddress=0.0.0.0", "replicationBindAddress=10.0.0.1", *FILES], "10.0.0.1"),
        (["replicationBindAddress=localhost"], "localhost"),
        (["replicationBindAddress=[::1]"], "[::1]"),
    ],
)
def test_where_replication_listens(keys: list[str], host: str) -> None:
    assert load_config(None, keys).replication_host == host


def test_the_files_for_replication_are_needed_together() -> None:
    for left_out in FILES:
        with pytest.raises(ConfigError, match="all three are needed, or none"):
            load_config(None, [file for file in FILES if file is not left_out])


def test_delay_levels_are_in_milliseconds() -> None:
    assert BrokerConfig().delay_levels_ms[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert BrokerConfig().delay_levels_ms[17] == 7_200_000


def test_limits_of_the_disk_must_not_fall() -> None:
    with pytest.raises(ConfigError, match="none may be above the next"):
        load_config(None, ["diskMaxUsedSpaceRatio=86"])
    config = load_config(None, ["deleteWhen=04;16", "diskMaxUsedSpaceRatio=50"])
    assert config.delete_hours == {4, 16}
    with pytest.raises(ConfigError, match="deleteWhen"):
        load_config(None, ["deleteWhen=24"])


def test_the_quota_of_a_member_far_behind_is_a_setting() -> None:
    assert engine_config(load_config(None, [])).throttle_bytes_per_s is None
    fixed = engine_config(load_config(None, ["peerPushQuota=20971520", "peerPushThrottlePoint=1000"]))
    assert (fixed.throttle_bytes_per_s, fixed.throttle_lag_bytes) == (20 << 20, 1000)


def test_quotas_are_those_of_the_keys_and_other_members_have_none(tmp_path: Path) -> None:
    rules = config_from({}).quota_rules(())
    assert (rules.address.requests_per_s, rules.user.requests_per_s) == (100_000, 200_000)
    assert rules.holder("127.0.0.1") is None
    peers = "n0-10.0.0.1:1;n1-10.0.0.2:1;n2-node-2.example:1"
    files = dict.fromkeys(("replicationTlsCertPath", "replicationTlsKeyPath", "replicationTlsCaPath"), "f")
    exempt = {"quotaExemptAddresses": "192.168.0.0/16", "quotasOnLoopback": True, "userRequestsPerSecond": 0}
    config = config_from({"dLegerPeers": peers, "addressInFlightMax": 7, **files, **exempt})
    rules = config.quota_rules(config.other_hosts)
    hosts = ("10.0.0.2", "192.168.7.7", "10.0.0.3", "127.0.0.1")
    assert [rules.holder(host) for host in hosts] == [None, None, "10.0.0.3", "127.0.0.1"]
    assert (rules.address.in_flight_max, rules.user.requests_per_s) == (7, 0)
    one_machine = {"dLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:2", "quotasOnLoopback": True}
    assert config_from(one_machine).quota_rules(["127.0.0.1"]).holder("127.0.0.1") is not None


def test_tls_follows_from_the_certificate() -> None:
    assert load_config(None).server_tls.mode_in_force == "disabled"
    assert load_config(None, ["tlsCertPath=c.pem"]).server_tls.mode_in_force == "permissive"
    assert load_config(None, ["tlsCertPath=c.pem", "tlsMode=disabled"]).server_tls.mode_in_force == "disabled"
    assert load_config(None, ["tlsCertPath=", "tlsMode="]).server_tls.certificate is None


def test_name_servers_may_be_shown_the_certificate_for_replication() -> None:
    enabled = "namesrvTlsEnable=true"
    assert load_config(None, FILES).namesrv_tls is None
    member = load_config(None, [*FILES, enabled])
    assert member.namesrv_tls == ClientTls(Path("ca.pem"), Path("n0.pem"), Path("n0.key"))
    assert member.client_tls is None
    other = [*FILES, enabled, "tlsCertPath=c.pem", "tlsTrustCertPath=all.pem", "tlsCheckHostName=false"]
    shown = ClientTls(Path("all.pem"), Path("n0.pem"), Path("n0.key"), checks_host_name=False)
    assert load_config(None, other).namesrv_tls == shown
    assert load_config(None, [enabled, "tlsCertPath=c.pem"]).namesrv_tls == ClientTls(None, Path("c.pem"))
    alike = load_config(None, ["tlsEnable=true", "tlsCertPath=c.pem", *FILES])
    assert alike.namesrv_tls == alike.client_tls
    with pytest.raises(ConfigError, match="namesrvTlsEnable needs a certificate"):
        load_config(None, [enabled])


def test_nodes_of_a_group_that_enforces_tls_speak_it_themselves() -> None:
    enforcing = ["tlsCertPath=c.pem", "tlsMode=enforcing"]
    assert load_config(None, enforcing).client_tls is None
    enforcing.append("dLegerPeers=n0-127.0.0.1:1;n1-127.0.0.1:2")
    with pytest.raises(ConfigError, match="tlsEnable = true"):
        load_config(None, enforcing)
    given = load_config(None, [*enforcing, "tlsEnable=true", "tlsTrustCertPath=ca.pem"]).client_tls
    assert given == ClientTls(Path("ca.pem"), Path("c.pem"), None, checks_host_name=True)
