"""The image has all that the wheel is built of: a package left out shows only when the image runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = {
    *PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"],
    *("pyproject.toml", PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["path"]),
    *(PROJECT["project"]["readme"], "LICENSE"),
}


def test_everything_of_the_wheel_is_copied_into_the_image() -> None:
    lines = re.findall(r"^COPY (?!--)(.+) \S+$", (DOCKER / "Dockerfile").read_text(encoding="utf-8"), re.M)
    assert {name for line in lines for name in line.split()} == SOURCES


def test_everything_of_the_wheel_is_in_the_build_context() -> None:
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    assert set(re.findall(r"^!(\S+)$", ignored, re.M)) == SOURCES


def test_each_volume_of_the_cluster_is_declared() -> None:
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    used = set(re.findall(r"(?:- |[\[ ]\")(\w+):/", text))
    _, _, declared = text.partition("\nvolumes:\n")
    assert used == set(re.findall(r"^  (\w+):", declared, re.M))
    assert {"n0", "n1", "n2", "admin"} <= used


def test_the_image_has_a_bill_of_materials() -> None:
    """Written in the last stage, as root: of what is there, and not for the process to change."""
    _, _, last = (DOCKER / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")
    before_user, _, _ = last.partition("\nUSER ")
    assert "RUN python -m ledgermq.bill_of_materials --system > /opt/ledgermq/image.cdx.json" in before_user
