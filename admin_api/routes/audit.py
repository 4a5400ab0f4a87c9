"""Who changed what."""

from fastapi import APIRouter, Depends, Request

from admin_api.audit import AuditLog
from admin_api.routes.overview_examples import AUDIT
from admin_api.routes.parts import PageDep, problems
from admin_api.schemas.audit import AuditPage
from admin_api.security.access import costly, require
from admin_api.security.actor import Role

router = APIRouter(prefix="/api/v1", tags=["audit"])


@router.get(
    "/audit",
    summary="Every change, newest first",
    dependencies=[Depends(require(Role.OPERATE)), Depends(costly)],
    responses={**AUDIT, **problems(e503="The audit log cannot be read.")},
)
async def get_audit(
    request: Request,
    page: PageDep,
) -> AuditPage:
    """Changes applied, refused or failed through this service; those of other tools are not here."""
    audit = request.app.state.audit
    assert isinstance(audit, AuditLog)
    entries, total = await audit.newest((page.number - 1) * page.size, page.size)
    return AuditPage(
        items=entries, page=page.number, page_size=page.size, total=total, is_kept=audit.path is not None
    )
