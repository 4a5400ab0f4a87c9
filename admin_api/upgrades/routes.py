"""`/api/v1/upgrade`: whether an upgrade can begin or go on; and its last step for one group."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path
from fastapi.responses import Response

from admin_api.changes import Action
from admin_api.cluster.schemas import NodeState
from admin_api.health_checks.facts import Finding, Severity
from admin_api.routing import (
    MakeDep,
    ServicesDep,
    changing,
    costly,
    problems,
    require,
    shown,
    shown_preview,
)
from admin_api.schema import EffectView
from admin_api.security.policy import Role
from admin_api.upgrades.report import UpgradeGroup, UpgradeNode, UpgradeReport

router = APIRouter(prefix="/api/v1/upgrade", tags=["upgrade"])
finish_router = APIRouter(prefix="/api/v1/replication/{group}", tags=["upgrade"])

_NODE: Final = UpgradeNode(
    id="n1",
    address="127.0.0.1:10921",
    state=NodeState.UP,
    release="0.1.0",
    protocol_version=None,
    format_level=None,
    format_level_max=2,
    is_leader=True,
    is_in_sync=True,
    disk_free_bytes=58 << 30,
    disk_used_ratio=0.42,
)
_REPORT: Final = shown(
    UpgradeReport(
        as_of_ms=1_767_225_600_000,
        release="0.2.0",
        is_ready=False,
        groups=[
            UpgradeGroup(
                group="broker-a",
                leader_id="n1",
                has_majority_to_spare=False,
                format_level=2,
                level_to_finish=None,
                nodes=[_NODE],
                steps=["n1: stop it, install 0.2.0, start it; go on when it is in sync"],
            )
        ],
        findings=[
            Finding(
                severity=Severity.ERROR,
                code="no-majority-to-spare",
                subject="broker-a",
                sentence="broker-a cannot spare a node now: n0 is down.",
                remedy="Wait until it has caught up, or mend it; check again before you stop another node.",
            )
        ],
    )
)


@router.get(
    "",
    summary="Whether an upgrade can begin or go on, and its steps",
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
    responses=_REPORT,
)
async def get_upgrade(services: ServicesDep) -> UpgradeReport:
    """Releases, protocols and formats of every node, a majority to spare, disks, certificates. To the release
    of this admin service. Always 200: `isReady` says whether a finding is an error."""
    return await services.upgrades.check()


@finish_router.post(
    "/format-level",
    summary="Finish an upgrade: raise the format level",
    **changing(
        Role.ADMIN,
        {
            **problems(
                e404="No such group.", e409="A member is away, or runs a release without a newer level."
            ),
            **shown_preview(
                Action.UPGRADE_FINISH,
                "replication group broker-a",
                EffectView(subject="format level", before="2", after="3"),
                warning="There is no way back.",
            ),
        },
    ),
)
async def finish_upgrade(
    services: ServicesDep,
    make: MakeDep,
    group: Annotated[str, Path(min_length=1, max_length=255, description="such as `broker-a`")],
) -> Response:
    """To the newest that all members read; all must be up and in sync. Releases that do not know the level
    cannot run a node of the group afterwards."""
    return await make(services.upgrades.finish(group))
