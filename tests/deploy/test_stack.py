import httpx
import psutil
import pytest

from deploy.local import databases
from deploy.local.process import ProcessFailed
from deploy.local.stack import EVERYTHING, Stack, unique_name

pytestmark = pytest.mark.process

EMPTY = "template0"  # a database as template, so that nothing is migrated


@pytest.fixture
def make(servers, tmp_path):
    """Make stacks that are not started, on an empty database."""
    names = []

    def make(*processes, **options):
        names.append(unique_name())
        options = {"servers": servers, "name": names[-1], "template": EMPTY, **options}
        return Stack(tmp_path / names[-1], processes=processes, **options)

    yield make
    for name in names:
        servers.drop_database(name)


class TestStack:
    def test_runs_beside_another(self, make):
        with make("provider") as one, make("provider") as other:
            assert one.provider.is_up()
            assert other.provider.is_up()
            assert one.env["DATABASE_URL"] != other.env["DATABASE_URL"]
            assert one.env["KEY_PREFIX"] != other.env["KEY_PREFIX"]

    def test_makes_its_database(self, make):
        with make() as stack:
            assert databases.exists(stack.name, server=stack.env["DATABASE_URL"])

    def test_leaves_nothing_running(self, make):
        before = set(psutil.Process().children(recursive=True))

        with make("provider"):
            pass

        assert set(psutil.Process().children(recursive=True)) <= before

    def test_leaves_nothing_running_when_a_process_fails(self, make):
        before = set(psutil.Process().children(recursive=True))
        stack = make("provider", "web", env={"DATABASE_URL": "nonsense"})

        with pytest.raises(ProcessFailed, match=r"(?s)web ended .*log/web.log"), stack:
            pass

        assert set(psutil.Process().children(recursive=True)) <= before

    def test_restarts_a_process_on_the_same_port(self, make):
        with make("provider") as stack:
            stack.provider.set_snapshot(7, version=1, items={})
            stack.process("provider").kill()

            stack.process("provider").restart()

            assert stack.provider.is_up()

    @pytest.mark.embedded
    def test_can_bring_servers_of_its_own(self, tmp_path):
        with Stack(tmp_path, processes=(), template=EMPTY, name="teguh") as stack:
            assert stack.servers.dead() == []

        assert len(stack.servers.dead()) == 2


class TestNewStack:
    """The whole product, up and down, as other tests ask for it."""

    def test_brings_up_every_process_of_the_procfile(self, new_stack):
        stack = new_stack(*EVERYTHING)

        assert all(process.is_alive() for process in stack.processes.values())
        assert httpx.get(f"{stack.api_url}/v1/operations").status_code in {401, 404}
        assert len(stack.worker.children()) == 2  # WORKER_SLOTS

    def test_ends_every_process_with_term(self, new_stack):
        stack = new_stack("web", "worker-inventory", "relay")

        stack.stop()

        assert {process.exit_code() for process in stack.processes.values()} == {0}

    @pytest.mark.embedded
    def test_gives_a_valkey_of_its_own_beside_the_same_postgres(self, new_stack, servers):
        stack = new_stack("worker-inventory", own="valkey")

        assert stack.servers.redis_url != servers.redis_url
        assert stack.servers.postgres is servers.postgres
