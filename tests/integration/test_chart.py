"""The Helm chart: what it renders is what Kubernetes takes, what a group needs to survive, and what the
programs accept; the cluster that it describes runs, with addresses of loopback in place of the pods'.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.__main__ import _parse_options
from broker.config import BrokerConfig, load_config
from tests.integration.client_runs import ROOT, need
from tests.integration.cluster import COMMAND, STOP_LIMIT_S
from tests.integration.test_compose import LIMIT_S, TOKEN
from tests.integration.waiting import answers, wait_for
from tests.support.chart import CHART, RELEASES, ChartError, Manifest, faults, lacking, render
from tests.support.children import ending_with_parent

pytestmark = pytest.mark.integration
SECURED = {
    "replicationTls": {"secretName": "tls-of-{group}"},
    "clientTls": {"secretName": "clients", "mode": "enforcing"},
    "accessControl": {"secretName": "access", "credentialsSecretName": "signer"},
    "admin": {"tokensSecretName": "tokens", "allowedHosts": ["mq.example.org"]},
    "grpc": {"tlsSecretName": "grpc"},
    "imagePullSecrets": [{"name": "pull"}],
}
CASES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "one": {
        "groups": [{"name": "broker-a", "replicas": 1}],
        "namesrv": {"replicas": 1},
        "admin": {"enabled": False},
        "grpc": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "broker": {"storage": {"storageClassName": "fast"}},
    },
    "three by five": {
        "groups": [{"name": f"broker-{name}", "replicas": 5} for name in "abc"],
        "broker": {"antiAffinity": "preferred", "tolerations": [{"key": "mq", "operator": "Exists"}]},
        "config": {"fileReservedTime": 24, "autoCreateTopicEnable": False, "zone": 'it\'s "a"'},
    },
    "secured": SECURED,
}
SECRET_TOML = """
initAuthenticationUser = '{"username": "root", "password": "a-password"}'
innerClientAuthenticationCredentials = '{"accessKey": "inner", "secretKey": "a-secret"}'
"""
"""What the Secret of `accessControl` has, as docs/kubernetes.md says."""


class Rendered:
    """The manifests of one case."""

    def __init__(self, values: Mapping[str, Any], folder: Path) -> None:
        self.values = values
        self.folder = folder
        self.manifests = render(values, folder)

    def of(self, kind: str) -> dict[str, Manifest]:
        """By name."""
        return {each["metadata"]["name"]: each for each in self.manifests if each["kind"] == kind}

    @property
    def groups(self) -> dict[str, Manifest]:
        """The StatefulSets of brokers."""
        return {name: each for name, each in self.of("StatefulSet").items() if not name.endswith("-namesrv")}

    @property
    def workloads(self) -> list[Manifest]:
        return [*self.of("StatefulSet").values(), *self.of("Deployment").values()]

    def toml(self, name: str) -> str:
        text: str = self.of("ConfigMap")[name]["data"]["broker.toml"]
        return text + (SECRET_TOML if "accessControl" in self.values else "")

    def broker_config(self, name: str, index: int) -> BrokerConfig:
        """As the broker of the pod reads it."""
        (container,) = self.groups[name]["spec"]["template"]["spec"]["containers"]
        options = _parse_options(arguments(container, index, "10.1.2.3"))
        file = self.folder / f"{name}.toml"
        file.write_text(self.toml(name), encoding="utf-8")
        return load_config(file, options.set)


def arguments(container: Mapping[str, Any], index: int, address: str) -> list[str]:
    """As Kubernetes fills them in."""
    values = {"$(POD_INDEX)": str(index), "$(POD_IP)": address}
    found = []
    for word in container["args"]:
        for name, value in values.items():
            word = word.replace(name, value)
        found.append(word)
    assert "$(" not in "".join(found)
    return found


@pytest.fixture(scope="module", params=CASES)
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    needed()
    return Rendered(CASES[request.param], tmp_path_factory.mktemp("chart"))


def needed() -> None:
    reason = lacking()
    need("chart", reason is None, f"{reason} (scripts/setup chart)")


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_takes_every_manifest(rendered: Rendered, release: str) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered.manifests]
    assert len(set(names)) == len(names)
    found = {name: faults(each, release) for name, each in zip(names, rendered.manifests, strict=True)}
    assert {name: each for name, each in found.items() if each} == {}


def test_helm_renders_the_same(rendered: Rendered) -> None:
    """Where it is installed. Random tokens differ."""
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("there is no helm on the PATH")
    given = str(rendered.folder / "values.json")
    command = [helm, "template", "rel", str(CHART), "-n", "mq", "-f", given, "--kube-version", RELEASES[-1]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    theirs = [each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] != "Secret"]
    ours = [each for each in rendered.manifests if each["kind"] != "Secret"]
    assert sorted(ours, key=str) == sorted(theirs, key=str)


def test_an_unknown_field_would_be_found(rendered: Rendered) -> None:
    wrong = {**rendered.manifests[0], "specification": {}}
    assert faults(wrong, RELEASES[0])


def test_each_group_has_what_lets_it_survive(rendered: Rendered) -> None:
    wanted = rendered.values.get("groups", [{"name": "broker-a", "replicas": 3}])
    assert {name: each["spec"]["replicas"] for name, each in rendered.groups.items()} == {
        f"rel-ledgermq-{each['name']}": each["replicas"] for each in wanted
    }
    for name, group in rendered.groups.items():
        spec, pod = group["spec"], group["spec"]["template"]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        selector = spec["selector"]["matchLabels"]
        assert selector.items() <= labels.items()
        budget = rendered.of("PodDisruptionBudget")[name]["spec"]
        assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, selector)
        service = rendered.of("Service")[name]["spec"]
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        assert (service["selector"], spec["serviceName"]) == (selector, name)
        assert spec["podManagementPolicy"] == "Parallel", "none is ready before a majority runs"
        assert _apart(pod["affinity"]["podAntiAffinity"])["labelSelector"]["matchLabels"] == selector
        assert _apart(pod["affinity"]["podAntiAffinity"])["topologyKey"] == "kubernetes.io/hostname"
        (claim,) = spec["volumeClaimTemplates"]
        assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
        (container,) = pod["containers"]
        assert {"name": claim["metadata"]["name"], "mountPath": "/data"} in container["volumeMounts"]
        assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "metrics"}
        assert container["livenessProbe"]["httpGet"]["path"] == "/live"
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 600, "a long log is recovered first"
        assert pod["terminationGracePeriodSeconds"] >= 30


def _apart(rule: Mapping[str, Any]) -> Any:
    """The one term of an anti-affinity, required or preferred."""
    ((kind, (term,)),) = rule.items()
    return term if kind.startswith("required") else term["podAffinityTerm"]


def test_pods_have_no_more_rights_than_they_need(rendered: Rendered) -> None:
    """Kubernetes' standard `restricted`, and a root that is read only."""
    for workload in rendered.workloads:
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert container["image"].startswith("ledgermq:")
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            claims = workload["spec"].get("volumeClaimTemplates", ())
            volumes = {each["name"] for each in pod.get("volumes", ())}
            assert mounted <= volumes | {claim["metadata"]["name"] for claim in claims}
    assert "a-password" not in str(rendered.manifests)


def test_every_broker_accepts_its_configuration(rendered: Rendered) -> None:
    preferred = []
    for name, group in rendered.groups.items():
        replicas = group["spec"]["replicas"]
        configs = [rendered.broker_config(name, index) for index in range(replicas)]
        ids = [f"n{index}" for index in range(replicas)]
        assert [config.dledger_self_id for config in configs] == ids
        peers = configs[0].peers
        domain = f"{name}.mq.svc.cluster.local"
        assert [(peer.id, peer.host) for peer in peers] == [
            (f"n{index}", f"{name}-{index}.{domain}") for index in range(replicas)
        ]
        assert {config.broker_ip for config in configs} == {"10.1.2.3"}
        assert {config.replication_host for config in configs} == {"0.0.0.0"}
        assert str(configs[0].store_path_root_dir) == "/data/store"
        ports = {each["name"]: each["port"] for each in rendered.of("Service")[name]["spec"]["ports"]}
        config = configs[0]
        assert ports == {
            "remoting": config.listen_port,
            "replication": peers[0].port,
            "metrics": config.metrics_port,
        }
        assert len(config.name_servers) == rendered.values.get("namesrv", {}).get("replicas", 2)
        for key, value in rendered.values.get("config", {}).items():
            assert config.model_dump(by_alias=True)[key] == value
        preferred.append(config.preferred_leader_id)
    assert preferred == [f"n{number}" for number in range(len(preferred))], "leaders are spread"


def test_with_certificates_and_users_nothing_is_left_open(tmp_path: Path) -> None:
    needed()
    found = Rendered(SECURED, tmp_path)
    config = found.broker_config("rel-ledgermq-broker-a", 2)
    assert config.replication_tls is not None
    assert str(config.replication_tls.certificate).endswith("/n2.pem")
    assert config.server_tls.mode_in_force == "enforcing"
    assert config.authentication_enabled
    assert config.authorization_enabled
    assert config.init_user == ("root", "a-password")
    (pod,) = (each["spec"]["template"]["spec"] for each in found.groups.values())
    secrets = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    assert secrets == {"tls-of-broker-a", "clients", "access"}
    (namesrv,) = found.of("StatefulSet")["rel-ledgermq-namesrv"]["spec"]["template"]["spec"]["containers"]
    assert "--tls-mode enforcing" in shlex.join(namesrv["args"])
    for deployment in found.of("Deployment").values():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        names = {each["name"] for each in container["env"]}
        assert names >= {"LEDGERMQ_TLS_AUTHORITIES", "LEDGERMQ_ACCESS_KEY", "LEDGERMQ_SECRET_KEY"}
    (policy,) = found.of("NetworkPolicy").values()
    (members,) = (rule for rule in policy["spec"]["ingress"] if {"port": "replication"} in rule["ports"])
    assert members["from"] == [{"podSelector": policy["spec"]["podSelector"]}]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"groups": [{"name": "broker-a", "replicas": 2}]}, "2 is not one of"),
        ({"groups": [{"name": "a", "replicas": 3}, {"name": "a", "replicas": 3}]}, "two groups are called a"),
        ({"groups": [{"name": "admin", "replicas": 3}]}, "admin"),
        ({"config": {"listenPort": 1}}, "config.listenPort cannot be set"),
        ({"config": {"fileReservedTime": [1]}}, "[1]"),
        ({"brokers": {}}, "'brokers' was unexpected"),
    ],
    ids=["even", "twice", "reserved", "fixed", "list", "unknown"],
)
def test_values_that_make_no_cluster_are_refused(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    needed()
    with pytest.raises(ChartError, match=re.escape(words)):
        render(values, tmp_path)


def test_the_chart_is_of_this_version() -> None:
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert project is not None
    assert chart["appVersion"] == project[1]


def test_every_value_is_in_the_page() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert [path for path in paths_of(values) if f"`{path}`" not in page] == []


def paths_of(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """`namesrv.replicas`; resources as a whole."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "resources":
            yield from paths_of(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


class Pods:
    """What the pods of the chart run, as processes of this machine: each has an address of loopback, which
    stands wherever the pod's name does, and a folder in place of its volumes.
    """

    def __init__(self, rendered: Rendered, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.containers: dict[str, Mapping[str, Any]] = {}
        self.addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}
        pid = os.getpid()
        for workload in rendered.workloads:
            name = workload["metadata"]["name"]
            (container,) = workload["spec"]["template"]["spec"]["containers"]
            for index in range(workload["spec"]["replicas"] if workload["kind"] == "StatefulSet" else 1):
                pod = f"{name}-{index}"
                address = f"127.{64 + pid % 128}.{pid // 128 % 256}.{100 + len(self.addresses)}"
                self.containers[pod], self.addresses[pod] = container, address
                self._names[f"{pod}.{name}.mq.svc.cluster.local"] = address
        self._rendered = rendered

    def start(self, pod: str) -> None:
        container, (name, _, index) = self.containers[pod], pod.rpartition("-")
        words = [*container["command"], *arguments(container, int(index), self.addresses[pod])]
        (self._folder / pod).mkdir()
        if name in self._rendered.groups:
            config = self._here(self._rendered.toml(name), pod)
            (self._folder / f"{pod}.toml").write_text(config, encoding="utf-8")
        tokens = {"LEDGERMQ_ADMIN_TOKENS": f"admin:admin:{TOKEN}"}
        fixed = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
        with self.log(pod).open("wb") as log:
            self._running[pod] = subprocess.Popen(
                ending_with_parent([self._here(word, pod) for word in words]),
                env={**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}", **tokens, **fixed},
                cwd=ROOT,
                stderr=log,
            )

    def _here(self, text: str, pod: str) -> str:
        places = {
            **self._names,
            "/etc/ledgermq/group/broker.toml": str(self._folder / f"{pod}.toml"),
            "/etc/ledgermq/replication": str(self._folder / "replication-broker-a" / "certificates"),
            "/data": str(self._folder / pod),
            "0.0.0.0": self.addresses[pod],
        }
        for there, here in places.items():
            text = text.replace(there, here)
        return text

    def log(self, pod: str) -> Path:
        return self._folder / f"{pod}.log"

    def passes(self, pod: str, probe: str) -> bool:
        """Whether the kubelet would find the pod ready, or alive."""
        assert self._running[pod].poll() is None, self.log(pod).read_text()[-4000:]
        container, address = self.containers[pod], self.addresses[pod]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        kind = container[probe].get("httpGet")
        if kind is not None:
            return answers(f"http://{address}:{ports[kind['port']]}{kind['path']}")
        try:
            with socket.create_connection((address, ports[container[probe]["tcpSocket"]["port"]]), LIMIT_S):
                return True
        except OSError:
            return False

    def stop(self) -> dict[str, int]:
        """Exit codes."""
        for process in self._running.values():
            process.terminate()
        return {pod: process.wait(STOP_LIMIT_S) for pod, process in self._running.items()}


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    needed()
    made = Pods(Rendered({}, tmp_path), tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_the_cluster_of_the_chart_becomes_ready(pods: Pods, tmp_path: Path) -> None:
    brokers = [f"rel-ledgermq-broker-a-{index}" for index in range(3)]
    nodes = [word for index in range(3) for word in ("--node", f"n{index}=127.0.0.1")]
    init = [str(COMMAND), "cluster", "init", "--data", "replication-broker-a", "--name", "broker-a", *nodes]
    subprocess.run(init, cwd=tmp_path, check=True, timeout=LIMIT_S, capture_output=True)

    for pod in brokers[:1]:
        pods.start(pod)
    wait_for("the first is alive", partial(pods.passes, brokers[0], "livenessProbe"), LIMIT_S)
    assert not pods.passes(brokers[0], "readinessProbe"), "it has no majority"
    for pod in pods.containers.keys() - set(brokers[:1]):
        pods.start(pod)
    for pod in pods.containers:
        for probe in ("livenessProbe", "readinessProbe"):
            wait_for(f"{pod} passes its {probe}", partial(pods.passes, pod, probe), LIMIT_S)

    admin = f"http://{pods.addresses['rel-ledgermq-admin-0']}:8080/readyz"
    wait_for("the admin sees a leader in every group", partial(answers, admin), LIMIT_S)
    assert set(pods.stop().values()) == {0}
