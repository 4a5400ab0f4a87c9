"""The Helm chart of docker/helm/ledgermq, rendered as Helm renders it (tests/integration/go/chart), and
checked against the schemas of Kubernetes.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "docker" / "helm" / "ledgermq"
RENDERER: Final = ROOT / ".cache" / "render-chart"
SCHEMAS: Final = ROOT / ".cache" / "kubernetes-schemas" / "kubernetes_validate" / "kubernetes-json-schema"
RELEASES: Final = ("1.28.0", "1.33.0")
"""Of Kubernetes: the oldest that the chart takes, and a newer one."""
LIMIT_S: Final = 60.0
Manifest = dict[str, Any]


class ChartError(Exception):
    """The chart refuses the values; the text is what it says."""


def lacking() -> str | None:
    """What the tests of the chart lack; None: nothing."""
    absent = [path.name for path in (RENDERER, SCHEMAS) if not path.exists()]
    return f"there is no {' and no '.join(absent)} in .cache" if absent else None


def render(
    values: Mapping[str, Any], folder: Path, name: str = "rel", namespace: str = "mq"
) -> list[Manifest]:
    """The manifests with these values over the chart's own. Raises ChartError, also for values that its
    schema refuses.
    """
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    wrong = [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(_merged(values))]
    if wrong:
        raise ChartError("; ".join(wrong))
    file = folder / "values.json"  # JSON is YAML
    file.write_text(json.dumps(values), encoding="utf-8")
    command = [str(RENDERER), name, namespace, str(CHART), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise ChartError(done.stderr.strip())
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def _merged(values: Mapping[str, Any]) -> Any:
    return _over(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), values)


def _over(under: Any, over: Any) -> Any:
    if not (isinstance(under, dict) and isinstance(over, Mapping)):
        return over
    return {**under, **{key: _over(under.get(key), value) for key, value in over.items()}}


@functools.cache
def _definitions(folder: Path) -> jsonschema_rs.Registry:
    definitions = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))
    return jsonschema_rs.Registry([("json-schema:///_definitions.json", definitions)])


def faults(manifest: Manifest, release: str) -> list[str]:
    """What this release of Kubernetes refuses in the manifest; unknown fields too."""
    folder = SCHEMAS / f"v{release}-local-strict"
    group, _, version = manifest["apiVersion"].rpartition("/")
    parts = [manifest["kind"].lower(), *([group.partition(".")[0]] if group else []), version]
    schema = json.loads((folder / f"{'-'.join(parts)}.json").read_text(encoding="utf-8"))
    validator = jsonschema_rs.validator_for(schema, registry=_definitions(folder))
    return [f"{list(error.instance_path)}: {error.message}" for error in validator.iter_errors(manifest)]
