"""Stacks for tests that kill, stop and starve what they run on."""

from contextlib import ExitStack

import pytest

from deploy.local.cable import Cable
from deploy.local.servers import Servers
from deploy.local.stack import Stack, unique_name
from tests.environment import forget_queues
from tests.faults.effects import serving
from tests.faults.lab import LAB, Lab


@pytest.fixture(scope="session")
def effects():
    with serving() as effects:
        yield effects


@pytest.fixture(scope="module")
def new_lab(servers, template, effects, tmp_path_factory):
    """Give a function that starts a lab, stopped after the module's last test.

    new_lab("web", "relay", env={…}) starts these processes; "worker-inventory#2" is a second worker. A test
    that harms PostgreSQL says own_postgres=True. With cabled=True the way to the broker can be harmed, and
    not only its server: lab.cable.
    """
    with ExitStack() as labs:

        def new(
            *processes: str,
            env: dict[str, str] | None = None,
            own_postgres: bool = False,
            cabled: bool = False,
        ) -> Lab:
            name = unique_name()
            shared = None if own_postgres else servers.postgres
            beside = labs.enter_context(
                Servers(durable=False, postgres=shared, broker_url=servers.broker_url)
            )
            if not own_postgres:
                labs.callback(servers.drop_database, name)
            env = {**LAB, "EFFECTS_URL": effects.url, **(env or {})}
            cable = labs.enter_context(Cable(beside.valkey.socket)) if cabled else None
            if cable is not None:
                env["BROKER_URL"] = f"redis://127.0.0.1:{cable.port}/0"
            labs.callback(forget_queues, beside, name, env)
            stack = Stack(
                tmp_path_factory.mktemp("lab"),
                processes=processes,
                servers=beside,
                name=name,
                template=None if own_postgres else template,
                env=env,
            )
            lab = Lab(labs.enter_context(stack), effects, cable)
            labs.callback(lab.close)
            return lab

        yield new
