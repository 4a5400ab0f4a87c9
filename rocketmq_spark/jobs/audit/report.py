"""The report of an audit: JSON with a digest of itself, and a signature if there is a key."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from rocketmq_spark.jobs.audit.judgement import Judgement
from rocketmq_spark.jobs.audit.model import Problem, QueueRun, RangeResult, Replica
from rocketmq_spark.log.entries import UNKNOWN

FORMAT: Final = "ledgermq-audit"
VERSION: Final = 1
IDENTICAL: Final = "identical"
DIFFERENT: Final = "different"
EXIT_CODES: Final = {IDENTICAL: 0, DIFFERENT: 2}
CHECKED: Final = (
    "every entry's magic, size, index, term, position and both CRCs, where the entry has them",
    "every message record's fields, its position and the CRC of its body",
    "the same bytes in every replica up to its committed position",
    "indexes without a gap, terms that never fall",
    "queue offsets without a gap or a repeat, for each topic and queue",
    "index units and blanks of every replica against its entries",
)
CHECKED_QUEUES: Final = "consume queues of every replica against the messages"
_SEALS: Final = ("digest", "signature")


@dataclass(frozen=True, slots=True)
class AuditReport:
    """`content` is what the JSON holds."""

    content: Mapping[str, Any]

    @property
    def is_identical(self) -> bool:
        """Whether the audit found no problem."""
        return bool(self.content["verdict"] == IDENTICAL)

    @property
    def exit_code(self) -> int:
        """0 if the replicas are identical, else 2."""
        return EXIT_CODES[str(self.content["verdict"])]

    @property
    def first_divergence(self) -> Mapping[str, Any] | None:
        """replica, position, index, field, kind and detail of the first place with other bytes."""
        found: Mapping[str, Any] | None = self.content["firstDivergence"]
        return found

    def to_json(self) -> bytes:
        """The content of the JSON file."""
        return orjson.dumps(self.content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def to_html(self) -> str:
        """The HTML page with plots; it loads nothing from elsewhere."""
        from rocketmq_spark.jobs.audit.page import page

        return page(self.content)


def make_report(
    about: Mapping[str, Any],
    replicas: Sequence[Replica],
    results: Sequence[RangeResult],
    found: Judgement,
    key: bytes | None,
) -> AuditReport:
    """Build the report and seal it."""
    first = found.first_divergence
    options: Mapping[str, Any] = about["options"]
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "verdict": DIFFERENT if found.problem_count else IDENTICAL,
        **about,
        "checked": [*CHECKED, CHECKED_QUEUES] if options["checkQueues"] else list(CHECKED),
        "entries": found.entries,
        "bytes": found.size_bytes,
        "firstDivergence": None if first is None else _problem(first),
        "problemCount": found.problem_count,
        "problems": [_problem(each) for each in found.problems],
        "notes": found.notes,
        "replicas": [_replica(each, results, found) for each in replicas],
        "commonEnd": _common_end(replicas),
        "epochs": [{"term": term, "firstIndex": index} for term, index, _ in found.epochs],
        "queues": [
            {"topic": topic, "queueId": queue_id, **_extent(runs)}
            for (topic, queue_id), runs in sorted(found.queues.items())
        ],
        "ranges": [_range(each) for each in results],
    }
    return AuditReport(seal(content, key))


def seal(content: Mapping[str, Any], key: bytes | None) -> dict[str, Any]:
    """The content with its digest, and with the digest's HMAC if there is a key."""
    sealed = {name: value for name, value in content.items() if name not in _SEALS}
    digest = _digest(sealed)
    sealed["digest"] = {"algorithm": "SHA-256", "value": digest}
    if key is not None:
        value = hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()
        sealed["signature"] = {"algorithm": "HMAC-SHA256", "keyId": key_id(key), "value": value}
    return sealed


def key_id(key: bytes) -> str:
    """A short id that identifies a key without revealing it: 16 hex characters."""
    return hashlib.sha256(b"ledgermq-audit-key:" + key).hexdigest()[:16]


def check_seal(data: bytes, key: bytes | None = None) -> str | None:
    """What is wrong with a report's file: None when it is as it was written and, with a key, signed by it."""
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return f"it is no JSON: {error}"
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return "it is no audit's report"
    rest = {name: value for name, value in content.items() if name not in _SEALS}
    digest = _digest(rest)
    if _value(content.get("digest")) != digest:
        return "it was changed: the digest is not its own"
    if key is None:
        return None
    signature = content.get("signature")
    if not isinstance(signature, dict):
        return "it is not signed"
    expected = hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(_value(signature), expected):
        return f"it was not signed with this key ({key_id(key)}), but with {signature.get('keyId')}"
    return None


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _value(field: object) -> str:
    return str(field.get("value")) if isinstance(field, dict) else ""


def _known(number: int) -> int | None:
    return None if number == UNKNOWN else number


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "kind": problem.kind,
        "replica": problem.replica,
        "index": _known(problem.index),
        "position": _known(problem.position),
        "field": problem.field,
        "detail": problem.detail,
    }


def _replica(replica: Replica, results: Sequence[RangeResult], found: Judgement) -> dict[str, Any]:
    states = [result.states.get(replica.name, "absent") for result in results]
    checkpoint = replica.log.checkpoint
    return {
        "name": replica.name,
        "path": replica.log.name,
        "format": replica.log.kind,
        "dataFiles": len(replica.log.data.starts),
        "dataFileBytes": replica.log.data.file_bytes,
        "begin": {"index": _known(replica.begin_index), "position": replica.begin_position},
        "committed": {"index": _known(replica.last_index), "position": replica.end_position},
        "checkpoint": None
        if checkpoint is None
        else {"endIndex": checkpoint.end_index, "committedIndex": checkpoint.committed_index},
        "ranges": {state: states.count(state) for state in ("same", "partial", "different", "absent")},
        "problems": sum(each.replica == replica.name for each in found.problems),
    }


def _common_end(replicas: Sequence[Replica]) -> dict[str, Any]:
    """Up to where all replicas were compared."""
    least = min(replicas, key=lambda each: each.end_position)
    return {"index": _known(least.last_index), "position": least.end_position, "replica": least.name}


def _extent(runs: Sequence[QueueRun]) -> dict[str, Any]:
    return {
        "firstOffset": runs[0].first_offset,
        "nextOffset": runs[-1].next_offset,
        "messages": sum(run.messages for run in runs),
        "runs": len(runs),
    }


def _range(result: RangeResult) -> dict[str, Any]:
    cell = result.cell
    return {
        "firstIndex": _known(cell.first_index),
        "lastIndex": _known(cell.last_index),
        "firstPosition": cell.first_position,
        "endPosition": cell.end_position,
        "entries": result.entries,
        "bytes": result.size_bytes,
        "sha256": result.sha256,
        "replicas": result.states,
    }
