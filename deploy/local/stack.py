"""One whole Teguh on this machine: servers, database, provider and the processes of the Procfile."""

import os
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local import databases, procfile, ready
from deploy.local.children import run
from deploy.local.gateway_control import GatewayControl
from deploy.local.guardian import Guardian
from deploy.local.named import NamedServers
from deploy.local.ports import Port
from deploy.local.process import Process, ProcessFailed
from deploy.local.provider_control import ProviderControl
from deploy.local.servers import Servers

PORTS = ("web", "provider", "gateway", "flower")
FROM_OUTSIDE = ("HOME", "LANG", "LC_ALL", "TMPDIR", "USER")  # the rest of the environment is the stack's own
EVERYTHING = ("provider", "gateway", *procfile.commands())
GATEWAY_KEY, WEBHOOK_SECRET = "sk_test_of_this_machine", "whsec_of_this_machine"
USUAL = ("provider", "web", "worker-inventory", "relay")


class Stack:
    """A stack with its own database and key prefix, so that many run beside each other."""

    def __init__(
        self,
        directory: Path,
        *,
        processes: Sequence[str] = USUAL,
        env: Mapping[str, str] | None = None,
        servers: Servers | NamedServers | None = None,
        name: str = "teguh",
        template: str | None = None,
        ports: Mapping[str, int] | None = None,
    ) -> None:
        """Prepare a stack.

        Args:
            directory: Where logs, metrics, the provider's store and the data of its own servers are.
            processes: What to start, in this order: "provider", "gateway", or a name of the Procfile;
                "name#2" is another one of it.
            env: Settings on top of the stack's own.
            servers: Running ones that somebody else stops; None means throw-away ones of its own.
            name: Of its database and its key prefix.
            template: A migrated database to copy; None means to migrate.
            ports: Those to take for PORTS if they are free; else any.
        """
        self.directory = directory.absolute()
        self.name = name
        self._template = template
        self._own_servers = servers is None
        self.servers = Servers(self.directory / "servers", durable=False) if servers is None else servers
        self._wanted = tuple(processes)
        self._extra = dict(env or {})
        self._guardian: Guardian | None = None
        self.processes: dict[str, Process] = {}
        self._ports = {name: Port((ports or {}).get(name, 0)) for name in PORTS}
        self.provider = ProviderControl(self._ports["provider"].url)
        self.gateway = GatewayControl(self._ports["gateway"].url)

    @property
    def api_url(self) -> str:
        return self._ports["web"].url

    @property
    def flower_url(self) -> str:
        return self._ports["flower"].url

    @property
    def worker(self) -> Process:
        """The first worker group."""
        return next(process for name, process in self.processes.items() if name.startswith("worker"))

    def process(self, name: str) -> Process:
        return self.processes[name]

    def start(self) -> Self:
        """Start everything, each after what it needs, and wait until all of it is ready.

        Raises:
            ProcessFailed: A process did not come up; then none runs.
        """
        try:
            if self._own_servers:
                self.servers.start()
            self._prepare_directory()
            self._prepare_database()
            self._start_processes()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop everything in reverse, the servers last."""
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in reversed(self.processes.values()):
            process.wait()
        self.provider.close()
        self.gateway.close()
        if self._guardian is not None:
            self._guardian.close()
        for port in self._ports.values():
            port.release()
        if self._own_servers:
            self.servers.stop()

    def add(self, name: str) -> None:
        """Start one more process, as "worker-inventory#2", and wait until it is ready.

        Raises:
            ProcessFailed: It did not come up.
        """
        if self._guardian is None:
            raise ProcessFailed(f"start the stack before adding {name!r} to it")
        self.processes[name] = self._process(name, self._guardian)
        self.processes[name].launch()
        self.processes[name].wait_until_ready()

    def remove(self, name: str) -> None:
        """Stop a process that was added."""
        self.processes.pop(name).stop()

    def manage(self, *arguments: str) -> str:
        """Run a management command on the stack's settings and give its output.

        Raises:
            ProcessFailed: It failed; the message has what it wrote.
        """
        done = run([sys.executable, procfile.ROOT / "manage.py", *arguments], env=self.env)
        if done.returncode != 0:
            raise ProcessFailed(f"manage.py {' '.join(arguments)} failed.\n{done.stdout}{done.stderr}")
        return done.stdout

    @property
    def env(self) -> dict[str, str]:
        """The environment of every process."""
        outside = {name: os.environ[name] for name in FROM_OUTSIDE if name in os.environ}
        programs = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        return {**outside, "PATH": programs, **self._settings(), **self._extra}

    def _settings(self) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": databases.url_of(self.name, beside=self.servers.database_url),
            "REDIS_URL": self.servers.redis_url,
            "KEY_PREFIX": self.name,
            "SECRET_KEY": "of-this-machine-only",
            "DEBUG": "false",
            "METRICS_TOKEN": "metrics-token-of-this-machine",
            "PROVIDER_URL": self.provider.base_url,
            "STRIPE_API_KEY": GATEWAY_KEY,
            "STRIPE_API_BASE": self.gateway.base_url,
            "STRIPE_HOSTS": "127.0.0.1",
            "STRIPE_WEBHOOK_SECRETS": WEBHOOK_SECRET,
            "PROMETHEUS_MULTIPROC_DIR": str(self.directory / "metrics"),
            "PORT": str(self._ports["web"].number),
            "FLOWER_PORT": str(self._ports["flower"].number),
            "FLOWER_BASIC_AUTH": "teguh:flower-password-of-this-machine",
            "PYTHONUNBUFFERED": "1",
            **self.servers.broker,
            **self._worker_group(),
        }

    def _worker_group(self) -> dict[str, str]:
        """Let a worker that is the only one serve every group; several keep to the Procfile's."""
        workers = [name for name in self._wanted if name.startswith("worker")]
        return {"WORKER_GROUP": ""} if len(workers) == 1 else {}

    def _prepare_directory(self) -> None:
        (self.directory / "log").mkdir(parents=True, exist_ok=True)
        metrics = self.directory / "metrics"
        shutil.rmtree(metrics, ignore_errors=True)  # the counts of dead processes are not ours
        metrics.mkdir()

    def _prepare_database(self) -> None:
        if not databases.exists(self.name, server=self.servers.database_url):
            self.servers.create_database(self.name, template=self._template)
        if self._template is None:
            self.manage("migrate", "--no-input")

    def _start_processes(self) -> None:
        self._guardian = Guardian()
        for name in self._wanted:
            self.processes[name] = self._process(name, self._guardian)
            self.processes[name].launch()
        for process in self.processes.values():
            process.wait_until_ready()

    def _process(self, name: str, guardian: Guardian) -> Process:
        return Process(
            name,
            self._command(name.partition("#")[0]),
            env=self.env,
            log=self.directory / "log" / f"{name}.log",
            is_ready=self._readiness(name),
            guardian=guardian,
        )

    def _command(self, name: str) -> str:
        if name not in ("provider", "gateway"):
            return procfile.commands()[name]
        directory, port = self.directory / name, self._ports[name].number
        command = f"exec python -m deploy.local.{name} --port {port} --directory '{directory}'"
        if name == "provider":
            return command
        hooks = f"--webhook-secret {WEBHOOK_SECRET} --webhook-url {self.api_url}/v1/webhooks/stripe"
        return f"{command} --api-key {GATEWAY_KEY} {hooks}"

    def _readiness(self, name: str) -> Callable[[Process], bool]:
        if name == "web":
            return ready.serves(self.api_url, after=f"Listening at: {self.api_url}")
        if name == "flower":
            return ready.serves(self.flower_url)
        words = {"provider": "provider ready: ", "gateway": "gateway ready: ", "relay": "relay.started"}
        return ready.says(words.get(name.partition("#")[0], " ready."))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()


def unique_name() -> str:
    """Give a name for a stack's database and keys."""
    return f"teguh_{uuid.uuid4().hex[:12]}"
