"""Software bills of materials (CycloneDX 1.6, JSON): what a wheel contains and requires, and what is
installed in an environment or image.

Only the standard library is used: the build hook loads this file by its path, before anything is installed.
The same content gives the same bytes, so that builds can be repeated.

    python -m ledgermq.bill_of_materials            the installed Python packages
    python -m ledgermq.bill_of_materials --system   and the packages of Debian, for an image
"""

import argparse
import json
import platform
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, PackageMetadata, distributions
from pathlib import Path
from typing import Any, Final

Component = dict[str, Any]
"""A component of CycloneDX. Its `bom-ref` is its purl."""

SPEC_VERSION: Final = "1.6"
LICENCE_CHARS_MAX: Final = 80
"""Characters. Some packages write the whole text of their licence into the field for its name."""
NESTED_BYTES_MAX: Final = 16 * 1024 * 1024
"""A bill inside another package that is larger than this is left out."""
DPKG_STATUS: Final = Path("/var/lib/dpkg/status")
OS_RELEASE: Final = Path("/etc/os-release")
VENDORED: Final = Path("admin_api/static/vendor/README.md")
"""Its table lists the libraries that the wheel contains unchanged."""
_VENDORED_ROW: Final = re.compile(r"^\| \[([^\]]+)\]\((\S+)\) \| (\S+) \| \[([^\]]+)\]", re.MULTILINE)
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*([^;]*)(?:;\s*(.*))?")
_LICENCE_CLASSIFIER: Final = "License :: "


def bill_of_wheel(root: Path) -> bytes:
    """The bill of a wheel built from this checkout: the libraries that it contains, and the packages that it
    requires. These have a range of versions, since the wheel itself does not choose a version.

    Raises:
        OSError, KeyError, ValueError: the checkout is not complete.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = pypi_component(project["name"], project["version"], "application")
    own["licenses"] = [{"expression": project["license"]}]
    contained = list(_vendored((root / VENDORED).read_text(encoding="utf-8")))
    wanted = list(_required(project["dependencies"], "required"))
    for requirements in project.get("optional-dependencies", {}).values():
        wanted += _required(requirements, "optional")
    required: dict[str, Component] = {}
    for each in wanted:
        if each["bom-ref"] != pypi_component(project["name"])["bom-ref"]:
            required.setdefault(each["bom-ref"], each)
    refs = [each["bom-ref"] for each in (*contained, *required.values())]
    return _document(own, [*contained, *required.values()], {own["bom-ref"]: refs})


def _vendored(table: str) -> Iterator[Component]:
    for name, url, version, licence in _VENDORED_ROW.findall(table):
        purl = f"pkg:npm/{name.lower()}@{version}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "scope": "required",
            "purl": purl,
            "licenses": [{"license": {"id": licence}}],
            "externalReferences": [{"type": "vcs", "url": url}],
        }


def _required(requirements: Iterable[str], scope: str) -> Iterator[Component]:
    for text in requirements:
        name, versions, marker = _parts(text)
        found = pypi_component(name) | {"scope": scope}
        declared = {"ledgermq:versions": versions, "ledgermq:marker": marker}
        found["properties"] = [{"name": key, "value": value} for key, value in declared.items() if value]
        yield found


def _parts(requirement: str) -> tuple[str, str, str]:
    """`uvloop>=0.21; sys_platform != 'win32'`: name, versions, marker. Raises ValueError."""
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise ValueError(f"{requirement!r} is no requirement")
    return match[1], match[2].strip(" ()"), (match[3] or "").strip()


def bill_of_environment(installed: Iterable[Distribution], system: Iterable[Component] = ()) -> bytes:
    """The bill of all installed packages. Each has the libraries that its own bills name (PEP 770) and the
    packages that it requires. `system`: components that are not Python packages.
    """
    found: dict[str, Component] = {}
    requires: dict[str, list[str]] = {}
    for distribution in installed:
        name = distribution.metadata["Name"]
        component = pypi_component(name, distribution.version)
        component |= _licences(distribution)
        nested = list(_nested(distribution))
        if nested:
            component["components"] = nested
        found[normalized(name)] = component
        requires[normalized(name)] = list(distribution.requires or ())
    own = found.pop("ledgermq", None) or pypi_component("ledgermq", "unknown")
    own["type"] = "application"
    refs = {name: component["bom-ref"] for name, component in {**found, "ledgermq": own}.items()}
    edges = {refs[name]: _edges(texts, refs) for name, texts in requires.items()}
    python = _generic("platform", "python", platform.python_version())
    return _document(own, [python, *found.values(), *system], edges)


def _edges(requirements: Iterable[str], refs: Mapping[str, str]) -> list[str]:
    """The required packages that are installed, also those of extras: requested extras are not recorded."""
    names = {normalized(_parts(text)[0]) for text in requirements}
    return sorted(refs[name] for name in names if name in refs)


def _licences(distribution: Distribution) -> Component:
    metadata = distribution.metadata
    expression = _first(metadata, "License-Expression")
    if expression:
        return {"licenses": [{"expression": expression}]}
    classifiers = metadata.get_all("Classifier") or []
    names = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith(_LICENCE_CLASSIFIER)]
    text = _first(metadata, "License").strip()
    if not names and text and len(text) <= LICENCE_CHARS_MAX:
        names = [text]
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


def _first(metadata: PackageMetadata, field: str) -> str:
    """The field's text, empty without the field."""
    return next(iter(metadata.get_all(field) or ()), "")


def _nested(distribution: Distribution) -> Iterator[Component]:
    """Libraries inside a package that its own CycloneDX bills name: name, version, licences, purl."""
    for path in distribution.files or ():
        if "sboms" not in path.parts or not path.name.endswith(".json"):
            continue
        try:
            data = Path(str(path.locate())).read_bytes()
            content = json.loads(data) if len(data) <= NESTED_BYTES_MAX else {}
        except (OSError, ValueError):
            continue
        components = content.get("components") if isinstance(content, dict) else None
        for each in components if isinstance(components, list) else ():
            if isinstance(each, dict) and isinstance(each.get("name"), str):
                keys = ("type", "name", "version", "purl", "licenses")
                yield {"type": "library"} | {key: each[key] for key in keys if key in each}


def debian_components(status: str, distribution: str = "debian") -> Iterator[Component]:
    """The installed packages of a dpkg status file."""
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
        )
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/{distribution}/{name}@{version}?arch={fields['Architecture']}"
            purl = purl.replace("+", "%2B")
            yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def pypi_component(name: str, version: str | None = None, kind: str = "library") -> Component:
    """A Python package; without a version where it is not chosen."""
    purl = f"pkg:pypi/{normalized(name)}"
    if version is None:
        return {"type": kind, "bom-ref": purl, "name": name, "purl": purl}
    purl = f"{purl}@{version.replace('+', '%2B')}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _generic(kind: str, name: str, version: str) -> Component:
    purl = f"pkg:generic/{name}@{version}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def normalized(name: str) -> str:
    """`Jinja2` -> `jinja2`, `typing_extensions` -> `typing-extensions` (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _document(own: Component, components: Iterable[Component], edges: Mapping[str, Iterable[str]]) -> bytes:
    unique = {each["bom-ref"]: each for each in components}
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {"component": own},
        "components": [unique[ref] for ref in sorted(unique)],
        "dependencies": [{"ref": ref, "dependsOn": sorted(set(edges[ref]))} for ref in sorted(edges)],
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return json.dumps({"serialNumber": f"urn:uuid:{number}", **content}, indent=1).encode() + b"\n"


def main(arguments: list[str] | None = None) -> int:
    """Writes the bill of this environment to stdout."""
    parser = argparse.ArgumentParser(
        prog="python -m ledgermq.bill_of_materials",
        description="Write the software bill of materials of this environment (CycloneDX JSON) to stdout.",
    )
    parser.add_argument("--system", action="store_true", help="also the packages that dpkg has installed")
    system: list[Component] = []
    if parser.parse_args(arguments).system:
        release = dict(line.split("=", 1) for line in OS_RELEASE.read_text().splitlines() if "=" in line)
        system += debian_components(DPKG_STATUS.read_text(encoding="utf-8"), release["ID"].strip('"'))
    sys.stdout.buffer.write(bill_of_environment(distributions(), system))
    return 0


if __name__ == "__main__":
    sys.exit(main())
