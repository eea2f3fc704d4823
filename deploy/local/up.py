"""Keep one whole stack up until Ctrl-C, and start again what dies: `make up`."""

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from deploy.local import people
from deploy.local.binaries import ServerMissing
from deploy.local.ending import end_on_signals, keys_to_us
from deploy.local.named import NamedServers, ServerUnreachable
from deploy.local.process import ProcessFailed
from deploy.local.server import ServerFailed
from deploy.local.servers import DATABASE, DirectoryInUse, Servers
from deploy.local.stack import EVERYTHING, Stack
from deploy.local.supervisor import Supervisor

PORTS = {"web": 8000, "provider": 8800, "flower": 5555}
WATCH_SECONDS = 0.2
OWNED = {"arrows": 10, "potions": 3}  # what the provider says of the user that is made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("var"), help="data and logs (default: var)")
    directory = parser.parse_args().directory
    end_on_signals()
    try:
        with keys_to_us():
            servers = _servers(directory).start()
            try:
                _keep_up(servers, directory)
            finally:
                servers.stop()
    except KeyboardInterrupt:
        return 0
    except (ServerFailed, ServerMissing, ServerUnreachable, DirectoryInUse, ProcessFailed) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def _servers(directory: Path) -> Servers | NamedServers:
    """Give the servers that the environment names, or our own."""
    database_url, redis_url = os.environ.get("DATABASE_URL"), os.environ.get("REDIS_URL")
    if database_url is None and redis_url is None:
        return Servers(directory)
    if database_url is None or redis_url is None:
        raise ServerUnreachable("name both DATABASE_URL and REDIS_URL, or neither")
    return NamedServers(database_url, redis_url)


def _keep_up(servers: Servers | NamedServers, directory: Path) -> None:
    name = urlsplit(servers.database_url).path.removeprefix("/") or DATABASE
    with Stack(
        directory, processes=EVERYTHING, servers=servers, name=name, env=_named(), ports=PORTS
    ) as stack:
        _tell(stack)
        if isinstance(servers, Servers):  # nobody's database but ours gets a user that nobody asked for
            _tell_who_may_look(stack)
            _tell_how_to_ask(stack)
        print("ready; Ctrl-C stops it", flush=True)
        supervisor = Supervisor(stack)
        while True:
            for name in supervisor.run_once():
                print(f"{name} had died and is started again", flush=True)
            time.sleep(WATCH_SECONDS)


def _named() -> dict[str, str]:
    """Give what the environment says about the product and its own stack cannot know."""
    return {
        name: os.environ[name] for name in ("BROKER_URL", "SENTRY_DSN", "SECRET_KEY") if name in os.environ
    }


def _tell(stack: Stack) -> None:
    print(f"API       {stack.api_url}/v1/")
    print(f"provider  {stack.provider.base_url}")
    print(f"gateway   {stack.gateway.base_url}")
    print(f"Flower    {stack.flower_url} ({stack.env['FLOWER_BASIC_AUTH']})")
    print(f"logs      {stack.directory}/log/")
    print(f"commands  . {_environment(stack)} && python manage.py deadletters groups")


def _environment(stack: Stack) -> Path:
    """Write what a shell needs to run the product's commands on this stack, and give the file."""
    file = stack.directory / "environment"
    file.touch(mode=0o600)
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in stack.env.items()))
    return file


def _tell_who_may_look(stack: Stack) -> None:
    admin, password = people.make_admin(stack)
    print(f"admin     {stack.api_url}/admin/ ({admin}:{password})")


def _tell_how_to_ask(stack: Stack) -> None:
    """Make a user who owns something, and print a request that works."""
    [person] = people.make(stack, ["ana"])
    if not stack.provider.journal(user_id=person.id):
        stack.provider.set_snapshot(person.id, version=1, items=OWNED)
    print(f"{person.name}'s token {person.token}")
    print(
        f"curl -X POST {stack.api_url}/v1/inventory/sync -H 'Authorization: Token {person.token}'"
        " -H 'Idempotency-Key: first' -H 'Content-Type: application/json' -d '{}'"
    )


if __name__ == "__main__":
    sys.exit(main())
