"""The page for people and the documentation page: files of this package, no call to anywhere else."""

import os
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

STATIC = Path(__file__).parent / "static"
_HEADERS = {"Cache-Control": "no-cache"}
"""The others are put on every answer (security/http_guard.py)."""

page_router = APIRouter(include_in_schema=False)


@page_router.get("/")
async def get_page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers=_HEADERS)


@page_router.get("/docs")
async def get_docs() -> FileResponse:
    return FileResponse(STATIC / "docs.html", headers=_HEADERS)


class _Files(StaticFiles):
    """No file has a NUL in its name; the system calls that a fault, and Starlette before 1.0 hands it on."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return ("", None) if "\0" in path else super().lookup_path(path)


def mount_static(app: FastAPI) -> None:
    app.mount("/static", _Files(directory=STATIC), name="static")
