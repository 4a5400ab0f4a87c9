"""Every command of mqadmin that has something to act on here, once, in one order."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from commitlog.record import format_properties
from remoting.codes import RequestCode
from remoting.headers.send import SendMessageRequestHeader
from tests.compat.mqadmin import MqAdmin
from tests.compat.stage import Stage
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire

CLUSTER = "DefaultCluster"
BROKER = "broker-a"
MESSAGES = 20
QUEUES = 4
TIMED = 30
SEEN_LIMIT_S = 90.0
RESET_LIMIT_S = 120.0
CHANGED_KEY, CHANGED_VALUE = "shortPollingTimeMills", "987"


@dataclass
class Performance:
    """Runs the commands; keeps what they printed."""

    mqadmin: MqAdmin
    stage: Stage
    folder: Path
    printed: dict[str, list[str]] = field(default_factory=dict)
    message_ids: list[tuple[str, str]] = field(default_factory=list)
    client_id: str = ""
    elected: str = ""

    def __post_init__(self) -> None:
        name = self.stage.unique
        self.topic, self.group, self.copy = name("Mqadmin"), name("MqadminGroup"), name("MqadminCopy")
        self.sink = f"{self.topic}-2"
        self.producers, self.again = name("MqadminProducers"), name("MqadminAgain")

    def run(self, *words: str) -> None:
        name = words[2] if words[0] == "@for" else words[0]
        self.mqadmin.begin(self.printed.setdefault(name, []).append, *words)

    def until(self, wanted: str, *words: str) -> None:
        """Run it till it prints that, or for SEEN_LIMIT_S; only the last time counts."""
        printed = ""

        def probe() -> bool:
            nonlocal printed
            printed = self.mqadmin.run(*words)
            return re.search(wanted, printed) is not None

        with suppress(AssertionError):  # the tests will say what is wrong
            wait_for(f"{wanted!r} of {' '.join(words)}", probe, SEEN_LIMIT_S)
        self.printed.setdefault(words[0], []).append(printed)

    @property
    def leader(self) -> str:
        return self.stage.leader_address()

    def all_of(self, command: str) -> str:
        return "\n".join(self.printed[command])

    def perform(self) -> None:
        self._topics()
        self._clients()
        self._messages()
        self._name_server()
        self._traffic()
        self._groups()
        self._brokers()
        self._exports()
        self._group_of_replicas()
        self._removals()
        self.mqadmin.finish()

    def _topics(self) -> None:
        topic, leader = self.topic, self.leader
        self.run("updateTopic", "-b", leader, "-t", topic, "-r", str(QUEUES), "-w", str(QUEUES))
        self._await_route(topic)
        self.run("topicRoute", "-t", topic)
        listed = [{"topicName": f"{topic}-{n}", "readQueueNums": 2, "writeQueueNums": 2} for n in (1, 2)]
        self.run("updateTopicList", "-b", leader, "-f", self._file("topics.json", listed))
        self.run("updateTopicPerm", "-c", CLUSTER, "-t", f"{topic}-1", "-p", "4")
        self.run("topicClusterList", "-t", topic)
        self.run("topicList", "-c")
        self.run("updateOrderConf", "-t", topic, "-m", "put", "-v", f"{BROKER}:{QUEUES}")
        self.run("updateOrderConf", "-t", topic, "-m", "get")
        self.run("updateOrderConf", "-t", topic, "-m", "delete")
        self.run("allocateMQ", "-t", topic, "-i", "10.0.0.1,10.0.0.2")

    def _clients(self) -> None:
        topic = self.topic
        produced = self.mqadmin.run("@produce", self.producers, topic, str(MESSAGES))
        self.message_ids = [(line.split()[0], line.split()[1]) for line in produced.splitlines()]
        self.client_id = self.mqadmin.run("@consume", self.group, topic).strip()
        self.mqadmin.run("@consume", self.again, topic)

    def _traffic(self) -> None:
        topic = self.topic
        for group in (self.again, self.group):
            with suppress(AssertionError):  # the tests will say so
                wait_for("the messages", partial(self._has_all, group), SEEN_LIMIT_S)
            self.until(r"Consume Diff Total: 0\b", "consumerProgress", "-g", group)
        # The running consumers of this group are sent back to the beginning while the other commands run.
        self.run("resetOffsetByTime", "-g", self.again, "-t", topic, "-s", "0")
        self.run("topicStatus", "-t", topic)
        self.run("statsAll", "-t", topic)
        self.run("producerConnection", "-g", self.producers, "-t", topic)
        self.run("producer", "-b", self.leader)
        self.run("consumerConnection", "-g", self.group)
        self.run("consumerProgress")
        self.run("consumerStatus", "-g", self.group)
        self.run("consumerStatus", "-g", self.group, "-i", self.client_id)

    def _groups(self) -> None:
        leader, copy = self.leader, self.copy
        retries = (
            '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":3000,"max":60000,"multiplier":3}}'
        )
        self.run("updateSubGroup", "-b", leader, "-g", copy, "-r", "7", "-p", retries)
        self.run(
            "updateSubGroupList", "-b", leader, "-f", self._file("groups.json", [{"groupName": f"{copy}-1"}])
        )
        self.run("getConsumerConfig", "-g", copy)
        self.run("cloneGroupOffset", "-s", self.group, "-d", copy, "-t", self.topic, "-o", "true")
        self.run("brokerConsumeStats", "-b", leader)
        self.run("resetOffsetByTime", "-g", copy, "-t", self.topic, "-s", "0")
        self.run("skipAccumulatedMessage", "-g", copy, "-t", self.topic)
        self.run("setConsumeMode", "-b", leader, "-t", self.topic, "-g", copy, "-m", "PULL")

    def _messages(self) -> None:
        topic, (offset_id, unique_id) = self.topic, self.message_ids[3]
        self.run("queryMsgById", "-t", topic, "-i", offset_id)
        self.until(unique_id, "queryMsgByUniqueKey", "-t", topic, "-i", unique_id)
        self.run("queryMsgByKey", "-t", topic, "-k", "key-3")
        self.run("queryMsgByOffset", "-t", topic, "-b", BROKER, "-i", "0", "-o", "0")
        self.run("printMsg", "-t", topic, "-d", "true")
        self.run("printMsgByQueue", "-t", topic, "-a", BROKER, "-i", "1", "-p", "true", "-d", "true")
        self.run(
            "sendMessage", "-t", self.sink, "-p", "sent by mqadmin", "-k", "K1", "-c", "TagB", "-m", "true"
        )
        self.run("consumeMessage", "-t", topic, "-b", BROKER, "-i", "0", "-o", "0", "-c", "2")
        self.run("checkMsgSendRT", "-t", self.sink, "-a", "3", "-s", "16")
        self.run("sendMsgStatus", "-b", BROKER, "-c", "2")
        self.mqadmin.finish()
        traced = re.findall(r"SEND_OK +([0-9A-F]{32,})", self.all_of("sendMessage"))
        self.until("Pub", "queryMsgTraceById", "-i", *traced)
        self.run("queryCq", "-t", topic, "-q", "0", "-i", "0", "-c", "3", "-b", self.leader)
        self.run("@for", "1500", "clusterRT", "-a", "3", "-s", "16", "-i", "1")

    def _brokers(self) -> None:
        leader = self.leader
        self.mqadmin.finish()
        self._time_messages(leader)
        self.until(r"\([0-9.]+w, (?!0\.0)", "clusterList")
        self.run("clusterList", "-m")
        self.run("brokerStatus", "-b", leader)
        self.run("updateBrokerConfig", "-b", leader, "-k", CHANGED_KEY, "-v", CHANGED_VALUE)
        self.mqadmin.finish()
        for node_id in self.stage.follower_ids():
            self._await_setting(node_id)
            self.run("getBrokerConfig", "-b", self.stage.cluster.address(node_id))
        self.run("updateBrokerConfig", "-b", leader, "-k", CHANGED_KEY, "-v", "1000")
        self.run("cleanExpiredCQ", "-b", leader)
        self.run("cleanUnusedTopic", "-b", leader)
        self.run("deleteExpiredCommitLog", "-b", leader)
        self.run("getColdDataFlowCtrInfo", "-b", leader)

    def _time_messages(self, leader: str) -> None:
        """As many as make more than 0.1 a second of the last 20 s; they wait till the topic is deleted."""
        header = SendMessageRequestHeader(
            producer_group=self.producers,
            topic=self.sink,
            default_topic=self.sink,
            default_topic_queue_nums=QUEUES,
            queue_id=0,
            sys_flag=0,
            born_timestamp_ms=0,
            properties=format_properties({"TIMER_DELAY_SEC": "3600"}).decode(),
        )
        with Wire(leader) as wire:
            for _ in range(TIMED):
                answer = wire.invoke(RequestCode.SEND_MESSAGE, header.ext_fields(), b"later")
                assert answer.code == 0, answer

    def _name_server(self) -> None:
        self.run("wipeWritePerm", "-b", BROKER)
        self.run("addWritePerm", "-b", BROKER)
        self.run("updateKvConfig", "-s", "MqadminSpace", "-k", "color", "-v", "green")
        self.run("deleteKvConfig", "-s", "MqadminSpace", "-k", "color")
        self.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
        self.run("getNamesrvConfig")
        self.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")

    def _exports(self) -> None:
        self.run("exportMetadata", "-c", CLUSTER, "-f", str(self.folder))
        self.run("exportConfigs", "-c", CLUSTER, "-f", str(self.folder))
        self.run("exportMetrics", "-c", CLUSTER, "-f", str(self.folder))

    def _group_of_replicas(self) -> None:
        follower = self.stage.follower_ids()[0]
        address = self.stage.cluster.address(follower)
        self.run("haStatus", "-b", self.leader)
        self.run("haStatus", "-b", address)
        self.run("getBrokerEpoch", "-b", BROKER)
        self.run("getControllerMetaData", "-a", address)
        self.run("getControllerConfig", "-a", address)
        self.run("getSyncStateSet", "-a", address, "-b", BROKER)
        broker_id = str(int(follower[1:]) + 1)
        self.elected = follower
        self._await_reset()
        self.run("electMaster", "-a", address, "-b", broker_id, "-bn", BROKER, "-c", CLUSTER)
        self.mqadmin.finish()
        self.stage.cluster.wait_leader()
        self.stage.make_whole()

    def _await_reset(self) -> None:
        """A Java consumer goes on at the offset it was sent to after 10 s, and tells the leader it knows."""
        with suppress(AssertionError):  # the tests will say so
            wait_for("the messages again", self.has_consumed_again, RESET_LIMIT_S)

    def _await_route(self, topic: str) -> None:
        self.mqadmin.finish()

        def is_there() -> bool:
            with Wire(self.stage.namesrv) as wire:
                return wire.invoke(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0

        wait_for(f"the route of {topic}", is_there, SEEN_LIMIT_S)

    def _await_setting(self, node_id: str) -> None:
        line = f"{CHANGED_KEY}={CHANGED_VALUE}\n".encode()

        def is_there() -> bool:
            with Wire(self.stage.cluster.address(node_id)) as wire:
                return line in wire.invoke(RequestCode.GET_BROKER_CONFIG).body

        wait_for(f"the setting on {node_id}", is_there, SEEN_LIMIT_S)

    def has_consumed_again(self) -> bool:
        return self._consumed(self.again) >= 2 * MESSAGES

    def _has_all(self, group: str) -> bool:
        return self._consumed(group) >= MESSAGES

    def _consumed(self, group: str) -> int:
        return int(self.mqadmin.run("@consumed", group))

    def _removals(self) -> None:
        self.run("deleteSubGroup", "-c", CLUSTER, "-g", self.copy, "-r", "true")
        self.run("deleteTopic", "-c", CLUSTER, "-t", f"{self.topic}-1")

    def _file(self, name: str, content: object) -> str:
        path = self.folder / name
        path.write_text(json.dumps(content), encoding="utf-8")
        return str(path)
