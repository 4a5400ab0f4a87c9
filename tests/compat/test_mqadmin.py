"""RocketMQ's mqadmin 5.5.0 against a three-node cluster: every sub-command that has something to act on here
runs without an error and prints what it should; the others stand in docs/compatibility.md with the reason.

The commands run once, in one order, in one process (`Performance`); the tests look at what each has printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import pytest

from remoting.codes import RequestCode
from tests.compat.mqadmin import ERROR_TEXT, MqAdmin, compile_runner
from tests.compat.mqadmin_performance import (
    BROKER,
    CHANGED_KEY,
    CHANGED_VALUE,
    CLUSTER,
    MESSAGES,
    QUEUES,
    TIMED,
    Performance,
)
from tests.compat.stage import Stage
from tests.integration.client_runs import ROOT

pytestmark = pytest.mark.integration
COMMANDS_MIN = 60
OF_ACCESS_CONTROL = frozenset(
    f"{verb}{thing}" for verb in ("create", "update", "delete", "get", "list") for thing in ("User", "Acl")
)
"""These need a cluster with users: test_own_access_control.py runs them."""


@pytest.fixture(scope="module")
def performed(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Performance]:
    """All commands have run."""
    compile_runner()
    folder = tmp_path_factory.mktemp("mqadmin")
    mqadmin = MqAdmin(stage.namesrv, folder)
    try:
        performance = Performance(mqadmin, stage, folder)
        performance.perform()
        yield performance
    finally:
        mqadmin.stop()


def documented(section: str) -> dict[str, str]:
    """The rows of one of the tables in docs/compatibility.md, first column to the rest."""
    text = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    part = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|", 1) for line in part.splitlines() if line.startswith("| `")]
    return {first.strip().strip("`"): rest.strip() for first, rest in rows}


def columns(printed: str, head: str) -> list[Sequence[str]]:
    """The rows below the heading line that begins so, by words."""
    lines = printed.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(head))
    return [line.split() for line in lines[at + 1 :] if line.strip()]


def test_no_command_prints_an_error(performed: Performance) -> None:
    errors = {
        name: printed[max(0, found.start() - 300) : found.end() + 300]
        for name, outputs in performed.printed.items()
        for printed in outputs
        if (found := ERROR_TEXT.search(printed)) is not None
    }
    assert errors == {}
    assert len(performed.printed) >= COMMANDS_MIN


def test_every_command_runs_here_or_is_documented_with_a_reason(performed: Performance) -> None:
    printed = performed.mqadmin.run("@help")
    commands = set(re.findall(r"^   (\w+)  ", printed, re.MULTILINE))
    left_out = set(documented("Unsupported mqadmin commands"))
    assert commands - set(performed.printed) - OF_ACCESS_CONTROL == left_out
    assert commands >= OF_ACCESS_CONTROL


def test_topics_are_made_shown_and_deleted(performed: Performance) -> None:
    topic = performed.topic
    assert f"create topic to {performed_leader(performed)} success" in performed.all_of("updateTopic")
    assert "update topic perm from 6 to 4" in performed.all_of("updateTopicPerm")
    assert topic in performed.all_of("topicList")
    assert f'"readQueueNums":{QUEUES}' in re.sub(r"\s", "", performed.all_of("topicRoute"))
    assert CLUSTER in performed.all_of("topicClusterList")
    shown = columns(performed.all_of("topicStatus"), "#Broker Name")
    rows = [row for row in shown if row[0] == BROKER]
    assert len(rows) == QUEUES
    assert sum(int(row[3]) for row in rows) == MESSAGES
    assert f"orderConf=[{BROKER}:{QUEUES}]" in performed.printed["updateOrderConf"][1]
    shares = json.loads(performed.all_of("allocateMQ"))["result"]
    assert sorted(len(queues) for queues in shares.values()) == [QUEUES // 2] * 2
    assert f"delete topic [{topic}-1] from cluster [{CLUSTER}] success" in performed.all_of("deleteTopic")
    assert f"{topic}-1" not in performed.mqadmin.run("topicList").split()


def performed_leader(performed: Performance) -> str:
    """The address that the first commands asked."""
    found = re.search(r"create topic to (\S+) success", performed.all_of("updateTopic"))
    assert found is not None
    return found.group(1)


def test_traffic_is_told_by_topic_and_group(performed: Performance) -> None:
    rows = columns(performed.all_of("statsAll"), "#Topic")
    by_group = {row[1]: row for row in rows}
    assert set(by_group) == {performed.group, performed.again}
    accumulated, in_tps, out_tps, in_day, out_day = by_group[performed.group][2:7]
    assert (accumulated, in_day, out_day) == ("0", str(MESSAGES), str(MESSAGES))
    assert min(float(in_tps), float(out_tps)) > 0


def test_clients_are_shown(performed: Performance) -> None:
    assert performed.client_id in performed.all_of("consumerConnection")
    assert "JAVA" in performed.all_of("consumerConnection")
    assert performed.producers in performed.all_of("producerConnection")
    assert performed.producers in performed.all_of("producer")
    assert performed.client_id in performed.printed["consumerStatus"][0]
    assert performed.topic in performed.printed["consumerStatus"][1]
    assert f"Consume Diff Total: {0}" in performed.printed["consumerProgress"][1]
    assert performed.group in performed.printed["consumerProgress"][2]


def test_offsets_are_cloned_skipped_and_reset(performed: Performance) -> None:
    assert "clone group offset success" in performed.all_of("cloneGroupOffset")
    stats = columns(performed.all_of("brokerConsumeStats"), "#Topic")
    cloned = [row for row in stats if row[:2] == [performed.topic, performed.copy]]
    assert sum(int(row[5]) for row in cloned) == MESSAGES
    to_first = columns(performed.printed["resetOffsetByTime"][1], "#brokerName")
    assert [row[2] for row in to_first] == ["0"] * QUEUES
    to_last = columns(performed.all_of("skipAccumulatedMessage"), "#brokerName")
    assert sum(int(row[2]) for row in to_last) == MESSAGES


def test_a_running_consumer_follows_a_reset(performed: Performance) -> None:
    assert performed.has_consumed_again()


def test_groups_are_made_shown_and_deleted(performed: Performance) -> None:
    shown = performed.all_of("getConsumerConfig")
    assert re.search(r"retryMaxTimes\s*=\s*7\b", shown)
    assert re.search(r"retryQueueNums\s*=\s*1\b", shown)
    assert "type=EXPONENTIAL" in shown
    assert "initial=3000, max=60000, multiplier=3" in shown
    assert f"[{performed.copy}]" in performed.all_of("deleteSubGroup")


def test_messages_are_found_and_sent(performed: Performance) -> None:
    _, unique_id = performed.message_ids[3]
    assert performed.topic in performed.all_of("queryMsgById")
    assert unique_id in performed.all_of("queryMsgByUniqueKey")
    assert unique_id in performed.all_of("queryMsgByKey")
    assert "body-" in performed.all_of("printMsg")
    assert "body-" in performed.all_of("printMsgByQueue")
    assert "SEND_OK" in performed.all_of("sendMessage")
    assert "Consume ok" in performed.all_of("consumeMessage")
    assert "Avg RT" in performed.all_of("checkMsgSendRT")
    assert performed.all_of("sendMsgStatus").count("SEND_OK") == 2
    assert len(re.findall(r"physicSize=[1-9]", performed.all_of("queryCq"))) == 3


def test_brokers_tell_of_themselves(performed: Performance) -> None:
    rows = columns(performed.printed["clusterList"][0], "#Cluster Name")
    assert rows[0][:3] == [CLUSTER, BROKER, "0"]
    assert len(rows) == 3
    assert [row[-1] for row in rows] == ["true", "false", "false"]
    timers = re.findall(r"(\d+)-(\d+)\(([\d.]+)w, ([\d.]+), ([\d.]+)\)", performed.all_of("clusterList"))
    assert len(timers) == len(rows)
    assert float(timers[0][3]) > 0, "timer messages were placed in the last seconds"
    figures = columns(performed.printed["clusterList"][1], "#Cluster Name")
    assert int(figures[0][4]) >= MESSAGES
    status = performed.all_of("brokerStatus")
    assert re.search(rf"timerCongestNum\s*: {TIMED}\b", status)
    spread = re.search(r"putMessageDistributeTime\s*:(.*)", status)
    assert spread is not None
    assert sum(int(part.rsplit(":", 1)[1]) for part in spread[1].split()) > 0
    for key in ("putMessageEntireTimeMax", "getMessageEntireTimeMax", "dispatchMaxBuffer"):
        assert re.search(rf"{key}\s*: \d+\s", status), key
    assert not re.search(r"dispatchMaxBuffer\s*: 0\b", status)
    for key in (
        "putTps",
        "getTotalTps",
        "getMissTps",
        "commitLogMaxOffset",
        "bootTimestamp",
        "brokerVersionDesc",
    ):
        assert re.search(rf"{key}\s*:\s*\S", status), key
    assert re.search(r"putMessageTimesTotal\s*:\s*[1-9]", status)


def test_a_setting_changed_on_the_leader_is_in_force_on_every_node(performed: Performance) -> None:
    of_followers = performed.printed["getBrokerConfig"]
    assert len(of_followers) == 2
    for shown in of_followers:
        assert re.search(rf"{CHANGED_KEY}\s*=\s*{CHANGED_VALUE}\b", shown)


def test_what_a_node_is_stands_in_its_configuration(performed: Performance) -> None:
    shown = performed.mqadmin.run("getBrokerConfig", "-b", performed.stage.leader_address())
    facts = {"brokerId": "0", "brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH", "useTLS": "false"}
    for key, value in (facts | {"msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC"}).items():
        assert re.search(rf"{key}\s*=\s*{value}\b", shown), key


def test_what_is_refused_is_refused_in_words(performed: Performance) -> None:
    leader, topic = performed.stage.leader_address(), performed.stage.topic("Refusing", 1)
    make_group = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    performed.stage.invoke_leader(make_group, body=b'{"groupName":"RefusingGroup"}')
    performed.stage.put_topic("%RETRY%RefusingGroup", 1)  # as its consumers' heartbeats would
    performed.stage.invoke_leader(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "RefusingGroup", "topic": topic, "queueId": "0", "commitOffset": "0"},
    )
    run = performed.mqadmin.run
    said = run("updateTopic", "-b", leader, "-t", topic, "-a", "+colour=blue")
    assert "unsupported key: colour" in said, said
    said = run("updateTopic", "-b", leader, "-t", topic, "-a", "+message.type=fifo")
    assert "value is not in set" in said, said
    said = run("switchTimerEngine", "-b", leader, "-e", "R")
    assert "there is one timer engine" in said, said
    said = run("cloneGroupOffset", "-s", "RefusingGroup", "-d", "AbsentGroup", "-t", topic, "-o", "true")
    assert "Group AbsentGroup not exist!" in said, said


def test_the_name_server_is_configured(performed: Performance) -> None:
    assert re.search(rf"wipe write perm of broker\[{BROKER}\].* OK, [1-9]", performed.all_of("wipeWritePerm"))
    assert re.search(rf"add write perm of broker\[{BROKER}\].* OK, [1-9]", performed.all_of("addWritePerm"))
    assert "success" in performed.all_of("updateKvConfig")
    assert "success" in performed.all_of("deleteKvConfig")
    assert re.search(r"orderMessageEnable\s*=\s*true", performed.all_of("getNamesrvConfig"))


def test_exports_hold_what_there_is(performed: Performance) -> None:
    metadata = json.loads((performed.folder / "metadata.json").read_text(encoding="utf-8"))
    assert metadata["topicConfigTable"][performed.topic]["readQueueNums"] == QUEUES
    assert performed.group in metadata["subscriptionGroupTable"]
    configs = json.loads((performed.folder / "configs.json").read_text(encoding="utf-8"))
    assert configs["clusterScale"]["masterBrokerSize"] == 1
    metrics = json.loads((performed.folder / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["evaluateReport"][BROKER]["runtimeQuota"]["topicSize"] >= 1


def test_the_replica_group_is_shown_and_led_by_whom_the_operator_says(performed: Performance) -> None:
    of_leader, of_follower = performed.printed["haStatus"]
    assert re.search(r"#SlaveNum\s+2", of_leader)
    assert of_leader.count(" OK ") == 2
    assert f"#MasterAddr\t{performed_leader(performed)}" in of_follower
    epochs = performed.all_of("getBrokerEpoch")
    assert epochs.count("#brokerName") == 3
    assert "#Epoch: " in epochs
    assert performed_leader(performed) in performed.all_of("getControllerMetaData")
    assert re.search(r"dLegerPeers\s*=\s*n0-", performed.all_of("getControllerConfig"))
    assert performed.all_of("getSyncStateSet").count("\nInSyncReplica:") == 3
    elected = performed.stage.cluster.address(performed.elected)
    assert f"#BrokerMasterAddr\t{elected}" in performed.all_of("electMaster")
