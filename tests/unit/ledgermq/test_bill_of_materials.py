"""Bills of materials: what a wheel contains and requires, and what is installed."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import Distribution, PathDistribution, distributions
from pathlib import Path
from typing import Any

import pytest

from ledgermq.bill_of_materials import (
    bill_of_environment,
    bill_of_wheel,
    debian_components,
    main,
    normalized,
)

ROOT = Path(__file__).resolve().parents[3]
VENDOR = ROOT / "admin_api/static/vendor"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DPKG = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 of several lines: with a colon

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def parsed(data: bytes) -> dict[str, Any]:
    """The document; what CycloneDX asks of every one is checked."""
    content: dict[str, Any] = json.loads(data)
    assert (content["bomFormat"], content["specVersion"], content["version"]) == ("CycloneDX", "1.6", 1)
    refs = [each["bom-ref"] for each in (content["metadata"]["component"], *content["components"])]
    assert len(set(refs)) == len(refs)
    assert all(each["type"] and each["name"] and each["purl"] for each in content["components"])
    for edge in content["dependencies"]:
        assert {edge["ref"], *edge["dependsOn"]} <= set(refs)
    return content


def by_name(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in content["components"]}


def package(folder: Path, name: str, **fields: str) -> Distribution:
    place = folder / f"{name}-1.0.dist-info"
    (place / "sboms").mkdir(parents=True)
    lines = [f"{key.replace('_', '-')}: {value}" for key, value in fields.items()]
    (place / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *lines])
    )
    (place / "RECORD").write_text(f"{place.name}/sboms/inside.cdx.json,,\n{place.name}/sboms/broken.json,,\n")
    return PathDistribution(place)


def test_a_wheel_names_what_it_contains_and_requires() -> None:
    content = parsed(bill_of_wheel(ROOT))
    own = content["metadata"]["component"]
    assert (own["name"], own["version"]) == ("ledgermq", PROJECT["version"])
    found = by_name(content)
    contained = {name for name, each in found.items() if "version" in each}
    assert {name.lower() for name in contained} == {path.name for path in VENDOR.iterdir() if path.is_dir()}
    assert found["uvloop"]["properties"] == [
        {"name": "ledgermq:versions", "value": ">=0.21"},
        {"name": "ledgermq:marker", "value": "sys_platform != 'win32'"},
    ]
    assert (found["pyspark"]["scope"], found["orjson"]["scope"]) == ("optional", "required")
    assert "ledgermq" not in found
    assert bill_of_wheel(ROOT) == bill_of_wheel(ROOT)


def test_an_environment_names_every_installed_package() -> None:
    content = parsed(bill_of_environment(distributions()))
    names = {normalized(each.metadata["Name"]) for each in distributions()} | {"python"}
    assert {normalized(name) for name in by_name(content)} | {"ledgermq"} == names
    edges = {edge["ref"]: edge["dependsOn"] for edge in content["dependencies"]}
    own = content["metadata"]["component"]["bom-ref"]
    assert any(ref.startswith("pkg:pypi/orjson@") for ref in edges[own])


def test_libraries_inside_a_package_are_named(tmp_path: Path) -> None:
    outer = package(
        tmp_path, "Outer_x", License_Expression="MIT", Requires_Dist="inner (>=1) ; extra == 'all'"
    )
    inner = package(
        tmp_path, "inner", License="a whole text " * 20, Classifier="License :: OSI Approved :: BSD License"
    )
    folder = tmp_path / "Outer_x-1.0.dist-info/sboms"
    inside = {"components": [{"type": "library", "name": "openssl", "version": "3.5.1", "bom-ref": "x"}, 7]}
    (folder / "inside.cdx.json").write_text(json.dumps(inside))
    (folder / "broken.json").write_text("{")
    found = by_name(parsed(bill_of_environment([outer, inner])))
    assert found["Outer_x"]["components"] == [{"type": "library", "name": "openssl", "version": "3.5.1"}]
    assert found["Outer_x"]["licenses"] == [{"expression": "MIT"}]
    assert found["inner"]["licenses"] == [{"license": {"name": "BSD License"}}]
    edges = parsed(bill_of_environment([outer, inner]))["dependencies"]
    assert {edge["ref"]: edge["dependsOn"] for edge in edges}["pkg:pypi/outer-x@1.0"] == [
        "pkg:pypi/inner@1.0"
    ]


def test_debian_s_installed_packages_are_named() -> None:
    (libc,) = debian_components(DPKG)
    assert (libc["name"], libc["version"]) == ("libc6", "2.36-9+deb12u10")
    assert libc["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64"


def test_the_command_writes_the_environment_s_bill(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([]) == 0
    assert "pytest" in by_name(parsed(capsysbinary.readouterr().out))
