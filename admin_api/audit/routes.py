"""`/api/v1/audit`, and file downloads that are audited."""

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from admin_api.audit.log import AuditEntry, AuditLog, AuditOutcome, AuditPage
from admin_api.routing import PageDep, costly, problems, require, shown
from admin_api.schema import EffectView
from admin_api.security.policy import Role

router = APIRouter(prefix="/api/v1", tags=["audit"])

_NOW_MS: Final = 1_767_225_600_000
_AUDIT: Final = shown(
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


@router.get(
    "/audit",
    summary="Every change, newest first",
    dependencies=[Depends(require(Role.OPERATE)), Depends(costly)],
    responses={**_AUDIT, **problems(e503="The audit log cannot be read.")},
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


class AuditedFile(StreamingResponse):
    """A download; `ends` is called when all is sent or the client has disconnected."""

    ends: Callable[[], Awaitable[None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.ends()
