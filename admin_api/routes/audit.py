"""Who changed what."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from admin_api.audit import AuditLog
from admin_api.schemas.audit import AuditPage
from admin_api.schemas.base import PAGE_MAX, PAGE_SIZE_MAX
from admin_api.security.access import costly, require
from admin_api.security.actor import Role

router = APIRouter(prefix="/api/v1", tags=["audit"])


@router.get(
    "/audit",
    summary="Every change, newest first",
    dependencies=[Depends(require(Role.OPERATE)), Depends(costly)],
)
async def get_audit(
    request: Request,
    page: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 1,
    page_size: Annotated[int, Query(alias="pageSize", ge=1, le=PAGE_SIZE_MAX)] = 50,
) -> AuditPage:
    """Changes applied, refused or failed through this service; those of other tools are not here."""
    audit = request.app.state.audit
    assert isinstance(audit, AuditLog)
    entries, total = await audit.newest((page - 1) * page_size, page_size)
    return AuditPage(
        items=entries, page=page, page_size=page_size, total=total, is_kept=audit.path is not None
    )
