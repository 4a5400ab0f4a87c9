"""Inputs that once broke a decoder, by target, with what they did."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator

import pytest

from tests.fuzz.target import load_targets
from tests.fuzz.targets import requests

TARGETS = load_targets()


def _sealed(line: bytes) -> bytes:
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


def _vote(body: bytes) -> bytes:
    return body + b"crc32=%d\n" % zlib.crc32(body)


FOUND = [
    # Signs before a number in quotes made the heartbeat fail with a ValueError of int().
    ("heartbeat", b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[%b]}]}'
     % b'{"topic":"T","subString":"*","subVersion":"--1"}'),
    # Numbers beyond 64 bits were taken, and then no route that showed them could be answered.
    ("data_version", b'{"counter":1e300}'),
    ("registration", b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":1e99}}}}'),
    ("compressed_registration", b"\0\0\0\2{}\0\0\0\1\0\0\0\x1cT 4 99999999999999999999999 6"),
    ("topic_route", b'{"queueDatas":[{"brokerName":"b","perm":1e99,"readQueueNums":4,"writeQueueNums":4}]}'),
    # An empty value hid the one before it, which the reader of all properties keeps, as Java's does.
    ("properties", b"TAGS\x01TagA\x02TAGS\x01\x02"),
    # A state record or snapshot with something else in a configuration's place was an AttributeError.
    ("state_record", b'{"version":1,"changes":[["putTopic",5]]}'),
    ("state_record", b'{"version":1,"changes":[["putGroup",[]]]}'),
    ("state_snapshot", b"LMQSTATE\0\0\0\1" + bytes(12) + b'{"appliedIndex":1,"tables":{"topics":[5]}}'),
    ("state_snapshot", b"LMQSTATE\0\0\0\1" + bytes(12) + b'{"appliedIndex":1e300,"tables":{}}'),
    # What no encoder puts in a record was taken from one: no queue has such an offset, no delay such a level.
    ("state_record", b'{"version":1,"changes":[["setDelayOffset",0,9]]}'),
    ("state_record", b'{"version":1,"changes":[["commitOffsets","G","T",[[-1,5]]]]}'),
    # Small files whose checksum fits and whose content does not ended the start of the node.
    ("sealed_file", _sealed(b"not JSON")),
    ("sealed_file", _sealed(b"[1]")),
    ("epochs_file", _sealed(b"{}")),
    ("epochs_file", _sealed(b'{"version":1,"beginIndex":0,"beginPosition":0,"epochs":[5]}')),
    ("epochs_file", _sealed(b'{"version":1,"beginIndex":%b,"beginPosition":0,"epochs":[]}' % (b"4" * 80))),
    ("queue_checkpoint", _sealed(b'{"version":1,"appliedIndex":null,"appliedPosition":0,"queues":0}')),
    ("impairment_file", _vote(b"not JSON\n")),
    ("impairment_file", _vote(b'{"version":1}\n')),
    ("hard_state_file", _vote(b"no line of this has a value\n")),
    ("hard_state_file", _vote(b"formatVersion=1\ncurrTerm=x\nvoteLeader=\n")),
    ("hard_state_file", _vote(b"formatVersion=1\n\xff=1\n")),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Nothing is logged of so much that is wrong, and the loops of the requests' targets are ended."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    requests.close()


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_once_failed_is_read_or_refused(name: str, data: bytes) -> None:
    TARGETS[name].check(data)
