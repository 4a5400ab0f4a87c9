"""The configuration while the broker runs: what can change does so on every node of the group."""

from pathlib import Path

import pytest

from broker.config import RUNTIME_KEYS, config_from, take_settings
from broker.state.changes import InvalidChangeError, PutSettings, decode_changes, encode_change, join_changes
from broker.state.state import ReplicatedState
from broker.store.message_log import engine_config
from remoting.codes import RequestCode
from remoting.properties_text import parse_properties_text
from tests.support.broker_parts import NOW_MS, FakeEngine
from tests.support.operator import Operator

UPDATE = RequestCode.UPDATE_BROKER_CONFIG


@pytest.fixture
async def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path, FakeEngine())


async def test_a_change_is_in_force_and_shown(operator: Operator) -> None:
    body = b"shortPollingTimeMills=250\nlongPollingEnable=false\n"
    assert (await operator.ask(UPDATE, body)).code == 0
    config = operator.parts.config
    assert (config.short_polling_time_ms, config.long_polling_enable) == (250, False)
    shown = (await operator.ask(RequestCode.GET_BROKER_CONFIG)).body
    assert b"shortPollingTimeMills=250\n" in shown


async def test_which_keys_can_change_is_told(operator: Operator) -> None:
    told = (await operator.ask(RequestCode.GET_BROKER_CONFIG)).ext_fields["runtimeKeys"]
    assert set(told.split(",")) == RUNTIME_KEYS


async def test_what_a_node_is_stands_beside_its_keys(operator: Operator) -> None:
    """Tools look for these keys of RocketMQ's, which follow from others or from who leads."""

    async def shown() -> dict[str, str]:
        return parse_properties_text((await operator.ask(RequestCode.GET_BROKER_CONFIG)).body)

    expected = {
        "brokerId": "0",
        "brokerRole": "SYNC_MASTER",
        "flushDiskType": "SYNC_FLUSH",
        "useTLS": "false",
        "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    }
    assert (await shown()).items() >= expected.items()
    assert (await operator.ask(UPDATE, b"brokerId=0\nuseTLS=false\n")).code == 0
    refused = await operator.ask(UPDATE, b"brokerRole=SLAVE\n")
    assert (refused.code, "brokerRole" in str(refused.remark)) == (16, True)
    operator.log.set_writable(False)
    assert (await shown()).items() >= {"brokerId": "1", "brokerRole": "SLAVE"}.items()


async def test_the_engine_hears_of_a_preferred_leader_and_that_there_is_none_again(
    operator: Operator,
) -> None:
    engine = engine_config(operator.parts.config)
    assert engine.preferred_now() is None
    assert (await operator.ask(UPDATE, b"preferredLeaderId=n1\n")).code == 0
    assert engine.preferred_now() == "n1"
    assert (await operator.ask(UPDATE, b"preferredLeaderId=\n")).code == 0
    assert engine.preferred_now() is None
    answer = await operator.ask(UPDATE, b"preferredLeaderId=n7\n")
    assert (answer.code, "n7" in (answer.remark or "")) == (29, True)


async def test_what_is_so_already_needs_no_record(operator: Operator) -> None:
    assert (await operator.ask(UPDATE, b"brokerName=broker-a\nlongPollingEnable=true\n")).code == 0
    assert (await operator.ask(UPDATE)).code == 0
    assert operator.log.messages == []


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"listenPort=1234", 16, "listenPort is fixed while the broker runs"),
        (b"longPolingEnable=true", 29, "longPollingEnable"),
        (b"shortPollingTimeMills=0", 29, "shortPollingTimeMills"),
        (b"shortPollingTimeMills=soon", 29, "shortPollingTimeMills"),
        (b"longPollingEnable=false\nlistenPort=1234", 16, "listenPort"),
        (b"nothing", 29, "key=value"),
        (b"\xff=1", 29, "UTF-8"),
    ],
)
async def test_what_cannot_change_changes_nothing(
    operator: Operator, body: bytes, code: int, said: str
) -> None:
    answer = await operator.ask(UPDATE, body)
    assert (answer.code, said in (answer.remark or "")) == (code, True), answer.remark
    assert operator.parts.config.long_polling_enable
    assert operator.log.messages == []


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        (b"transactionCheckMax=3", "transaction_check_max", 3),
        (b"transactionTimeOut=7000", "transaction_timeout_ms", 7_000),
        (b"transactionCheckInterval=500", "transaction_check_ms", 500),
        (b"autoCreateTopicEnable=false", "auto_create_topic_enable", False),
        (b"brokerPermission=4", "broker_permission", 4),
        (b"traceOn=false", "trace_on", False),
        (b"maxMessageSize=1048576", "max_message_bytes", 1_048_576),
        (b"maxTransferCountOnMessageInMemory=32", "memory_messages_max", 32),
        (b"maxTransferBytesOnMessageInDisk=65536", "disk_bytes_max", 65_536),
    ],
)
async def test_what_rocketmq_changes_while_it_runs_changes_here(
    operator: Operator, setting: bytes, field: str, value: object
) -> None:
    calls: list[str] = []
    operator.parts.state.on_settings_changed(lambda: calls.append(field))
    assert (await operator.ask(UPDATE, setting)).code == 0
    assert getattr(operator.parts.config, field) == value
    assert calls == [field]


async def test_name_servers_hear_of_what_routes_show(operator: Operator) -> None:
    """They keep a topic whose version is the same."""
    for setting in (b"brokerPermission=4", b"autoCreateTopicEnable=false"):
        version = operator.parts.state.data_version
        assert (await operator.ask(UPDATE, setting)).code == 0
        assert operator.parts.state.data_version.counter == version.counter + 1
    version = operator.parts.state.data_version
    assert (await operator.ask(UPDATE, b"traceOn=false")).code == 0
    assert operator.parts.state.data_version == version


async def test_a_follower_changes_nothing_and_names_the_leader(operator: Operator) -> None:
    operator.log.set_writable(False)
    answer = await operator.ask(UPDATE, b"longPollingEnable=false")
    assert answer.code == 14
    assert operator.parts.config.long_polling_enable


async def test_another_node_takes_the_settings_over_from_log_and_snapshot(
    operator: Operator, tmp_path: Path
) -> None:
    await operator.ask(UPDATE, b"topicsMax=77\nautoCreateTopicEnable=false\n")
    replayed = config_from({"storePathRootDir": str(tmp_path / "other"), "dLegerSelfId": "n0"})
    log = operator.log.reopened()
    state = ReplicatedState(replayed, log, lambda: NOW_MS)
    state.restore()
    await log.start()
    assert replayed.topics_max == 77
    await state.start()
    await state.stop()
    restored = config_from({"storePathRootDir": str(tmp_path / "other")})
    loaded = ReplicatedState(restored, operator.log.reopened(), lambda: NOW_MS)
    loaded.restore()
    assert (restored.topics_max, restored.auto_create_topic_enable) == (77, False)
    assert "TBW102" not in state.topics
    assert "TBW102" not in loaded.topics


def test_settings_of_a_later_version_stop_no_node() -> None:
    config = config_from({})
    take_settings(config, {"keyOfTomorrow": "1", "topicsMax": "many", "groupsMax": "9", "listenPort": "5"})
    assert (config.groups_max, config.topics_max, config.listen_port) == (9, 20_000, 10911)


def test_settings_survive_the_log_and_are_bounded() -> None:
    change = PutSettings({"topicsMax": "5"})
    assert decode_changes(join_changes([encode_change(change)])) == [change]
    for values in ({"k": "v" * 1_025}, {f"k{n}": "" for n in range(101)}):
        with pytest.raises(InvalidChangeError):
            encode_change(PutSettings(values))
