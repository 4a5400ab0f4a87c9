"""What the description shows of the history, the doctor, the audit log, replication and the name server,
built from the models.
"""

from typing import Any, Final

from admin_api.examples import GROUP_EXAMPLE
from admin_api.routes.parts import shown
from admin_api.schemas.audit import AuditEntry, AuditOutcome, AuditPage
from admin_api.schemas.changes import EffectView
from admin_api.schemas.cluster import Health, Readiness
from admin_api.schemas.doctor import DoctorReport, Finding, Severity
from admin_api.schemas.history import GroupHistory, HistorySample, HistoryView
from admin_api.schemas.maintenance import ItemsView, NameServerView
from admin_api.schemas.replication import ReplicationSettings, ReplicationView

Shown = dict[int | str, dict[str, Any]]
_NOW_MS: Final = 1_767_225_600_000
_INTERVAL_MS: Final = 5_000

HEALTH: Final[Shown] = shown(Health())
READY: Final[Shown] = shown(Readiness(leaders={"broker-a": "n1"}))
HISTORY: Final[Shown] = shown(
    HistoryView(
        as_of_ms=_NOW_MS,
        interval_ms=_INTERVAL_MS,
        keep_ms=3_600_000,
        groups=[
            GroupHistory(
                broker_name="broker-a",
                samples=[
                    HistorySample(at_ms=_NOW_MS - 2 * _INTERVAL_MS),
                    HistorySample(
                        at_ms=_NOW_MS - _INTERVAL_MS,
                        leader_id="n1",
                        put_per_s=118.5,
                        get_per_s=237.0,
                        put_p99_ms=4.2,
                        lag_entries={"n0": None, "n2": 1},
                        lag_ms={"n0": None, "n2": 3},
                    ),
                ],
            )
        ],
    )
)
DOCTOR: Final[Shown] = shown(
    DoctorReport(
        as_of_ms=_NOW_MS,
        is_well=True,
        findings=[
            Finding(
                severity=Severity.WARNING,
                code="node-down",
                subject="broker-a/n0",
                sentence="broker-a/n0 is down (it answered last 30 s ago): 127.0.0.1:10911 cannot be "
                "reached: Connection refused.",
                remedy="Start it again (on its own machine: `ledgermq node n0`); it catches up by itself.",
            )
        ],
        looked_at={"groups": 1, "nodes": 3, "consumerGroups": 12, "deadLetterQueues": None},
    )
)
AUDIT: Final[Shown] = shown(
    AuditPage(
        items=[
            AuditEntry(
                id="1767225600000-1",
                at_ms=_NOW_MS,
                ended_at_ms=_NOW_MS + 40,
                actor="night-shift",
                role="operate",
                remote="10.0.0.7",
                action="offset.skip",
                target="billing",
                outcome=AuditOutcome.APPLIED,
                effects=[EffectView(subject="orders broker-a/3", before="57", after="120")],
                effects_total=1,
            )
        ],
        page=1,
        page_size=100,
        total=1,
        is_kept=True,
    )
)
REPLICATION: Final[Shown] = shown(
    ReplicationView(
        group=GROUP_EXAMPLE,
        preferred_leader_id=None,
        in_sync=GROUP_EXAMPLE.in_sync,
        settings=ReplicationSettings(
            heartbeat_interval_ms=100,
            election_timeout_min_ms=1_000,
            election_timeout_max_ms=2_000,
            wait_ack_timeout_ms=2_500,
            pending_appends_max=10_000,
            throttle_bytes_per_s=0,
            throttle_lag_bytes=None,
        ),
    )
)
NAME_SERVER: Final[Shown] = shown(
    NameServerView(address="127.0.0.1:9876", config={"listenPort": "9876", "orderMessageEnable": "false"})
)
ITEMS: Final[Shown] = shown(
    ItemsView(namespace="ORDER_TOPIC_CONFIG", items={"orders": "broker-a:4;broker-b:4"})
)
