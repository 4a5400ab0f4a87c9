"""RocketMQ's own name server and broker in Java, as Maven gives them: the pipeline works with them too."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from pathlib import Path

from commitlog.record import decode_record
from ledgermq.local.plan import is_free
from remoting.client.routes import MessageQueue
from remoting.errors import RemotingError
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import pull
from rocketmq_spark.client.queue_offsets import min_offset
from rocketmq_spark.errors import RocketmqSparkError
from tests.integration.client_runs import CACHE, QUICK_JVM, ROOT, need
from tests.integration.waiting import wait_for
from tests.support.children import ending_with_parent

VERSIONS = ("5.5.0", "4.9.7")
POM = ROOT / "bench/java/pom.xml"
FETCH_LIMIT_S = 300.0
READY_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
PORT_TRIES = 100
OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
"""RocketMQ 4 unmaps deleted files by hand."""
LOGGING = '<configuration><root level="OFF"/></configuration>'
QUIET = {"transactionMetricFlushInterval": 200, "timerFlushIntervalMs": 10_000}
"""Milliseconds. Before RocketMQ 5 first writes its figures of transactions, a thread spins for that time."""
NO_TLS = "-Dtls.server.mode=disabled"
"""Otherwise each of the servers begins with an RSA key of its own."""
FILE_BYTES = 1 << 20
"""Of the log's files: small, so that old ones are there to be deleted."""
PORTS_FROM, PORTS_FOR_ONE, _PORTS_SPREAD = 18_000, 20, 2_900
_FAST_PORT, _HA_PORT = -2, 1
"""Where a broker listens besides its port."""


def has_java() -> bool:
    return all(shutil.which(program) for program in ("java", "mvn"))


def fetch(version: str) -> Path:
    """The folder with the broker's jars, fetched once; skips the test where Java or Maven is missing."""
    folder = CACHE / "java" / f"{version}-broker"
    if (folder / ".complete").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as lock:  # other tests run beside these
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fetch_into(folder, version)
    return folder


def _fetch_into(folder: Path, version: str) -> None:
    if (folder / ".complete").exists():
        return
    need("java", has_java(), "install a JDK of 17 or newer and Maven")
    command = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(POM), f"-Drocketmq.version={version}"]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
    need("java", result.returncode == 0, f"Maven could not fetch RocketMQ {version}: {result.stdout[-2000:]}")
    (folder / ".complete").touch()


class StockBroker:
    """One name server and one broker, not replicated, on 127.0.0.1. Two that start together need ports
    of their own: `ports_from` of one is PORTS_FOR_ONE above the other's. `acl` is a `plain_acl.yml` of
    RocketMQ 4: with it the broker's access control is on. `namesrv`: a name server that runs already.
    """

    def __init__(
        self,
        folder: Path,
        version: str,
        ports_from: int = PORTS_FROM,
        acl: str | None = None,
        namesrv: str | None = None,
    ) -> None:
        self.folder = folder
        self.version = version
        self._acl = acl
        self._jars = fetch(version)
        self._namesrv_port, self._broker_port = _free_ports(ports_from)
        self._has_own_namesrv = namesrv is None
        self.namesrv = namesrv or f"127.0.0.1:{self._namesrv_port}"
        self.address = f"127.0.0.1:{self._broker_port}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, **settings: object) -> None:
        """Start both, the broker with these settings, and wait until the name server knows the broker."""
        if self._has_own_namesrv:
            config = self._write("namesrv.conf", {"listenPort": self._namesrv_port})
            self._spawn("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", config, 128)
        self._start_broker(**settings)

    def _start_broker(self, **further: object) -> None:
        store = self.folder / "store"
        settings: dict[str, object] = {"namesrvAddr": self.namesrv, "brokerIP1": "127.0.0.1"}
        settings |= {"listenPort": self._broker_port, "brokerName": "stock", "brokerId": 0}
        settings |= {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        settings |= {"mappedFileSizeCommitLog": FILE_BYTES, "diskMaxUsedSpaceRatio": 99}
        settings |= {"haListenPort": self._broker_port + _HA_PORT}
        settings |= QUIET
        settings |= further
        if self._acl is not None:
            settings["aclEnable"] = "true"
            (conf := self.folder / "home/conf").mkdir(parents=True, exist_ok=True)
            (conf / "plain_acl.yml").write_text(self._acl, encoding="utf-8")
        config = self._write("broker.conf", settings)
        self._spawn("broker", "org.apache.rocketmq.broker.BrokerStartup", config, 512)
        wait_for(f"RocketMQ {self.version} is ready", self._is_ready, READY_LIMIT_S)

    def stop(self) -> None:
        """End both by their own pids."""
        for process in reversed(self._processes):
            _end(process)
        self._processes.clear()

    def kill(self) -> None:
        """The same at once: nobody is to read what they have stored."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    def lose_before(self, topic: str, offset: int) -> int:
        """Delete the log's files before the one with this message of queue 0, while the broker is down: its
        own retention would do so at its hour. The first offset that is then kept.
        """
        queue = MessageQueue(topic, "stock", 0)
        with Cluster(self.namesrv) as cluster:
            kept = decode_record(pull(cluster, queue, offset, count_max=1).data).physical_offset
        _end(self._processes.pop())
        for path in (self.folder / "store/commitlog").iterdir():
            if int(path.name) + FILE_BYTES <= kept:
                path.unlink()
        self._start_broker()
        with Cluster(self.namesrv) as cluster:
            return wait_for("the loss is known", lambda: min_offset(cluster, queue), READY_LIMIT_S)

    def _is_ready(self) -> bool:
        for process in self._processes:
            assert process.poll() is None, f"a Java process ended: {self._log_text()}"
        try:
            with Cluster(self.namesrv, timeout_s=2.0, deadline_s=0.1) as cluster:
                return "stock" in cluster.cluster_info().brokers and bool(cluster.write_queues("TBW102"))
        except (RocketmqSparkError, RemotingError):
            return False

    def _spawn(self, name: str, main: str, config: Path, heap_mib: int) -> None:
        conf = self.folder / "home/conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / f"logback_{name}.xml").write_text(LOGGING, encoding="utf-8")  # RocketMQ 4 needs it
        command = ["java", f"-Xmx{heap_mib}m", "-XX:MaxDirectMemorySize=256m"]
        command += QUICK_JVM
        for package in OPENED:
            command += ["--add-opens", f"java.base/{package}=ALL-UNNAMED"]
        command += [NO_TLS, f"-Duser.home={self.folder}", "-cp", f"{self._jars}/*", main, "-c", str(config)]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                ending_with_parent(command),
                env=os.environ | {"ROCKETMQ_HOME": str(self.folder / "home")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)

    def _write(self, name: str, settings: dict[str, object]) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        return path

    def _log_text(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)[-4000:]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(ports_from: int) -> tuple[int, int]:
    """A name server port and a broker port whose neighbours are free too."""
    for attempt in range(PORT_TRIES):
        first = ports_from + (os.getpid() * 41 + attempt * 53) % _PORTS_SPREAD
        broker = first + 10
        if all(map(is_free, (first, broker, broker + _FAST_PORT, broker + _HA_PORT))):
            return first, broker
    raise AssertionError(f"no free ports in {PORT_TRIES} tries")
