"""Flower lets nobody in without the password, and neither it nor anything else shows what a client sent."""

import re
import subprocess
import threading
import uuid
from contextlib import contextmanager

import httpx
import psutil
import pytest
import redis
from flower.urls import handlers
from tornado.web import URLSpec

from deploy.local import procfile
from tests.faults.lab import PRICE_MINOR, eventually

pytestmark = [pytest.mark.process, pytest.mark.embedded]

SECRET = "S3CR3T-XYZ"
TOKEN, CARD = "pm_canary_5f1c", "4242424242424242"
LOOPBACK = {"127.0.0.1", "::1"}
# Open on purpose: figures by task and worker, "OK", style sheets, and pages that say nothing.
OPEN = {"/metrics", "/healthcheck", "/static/any", "/login/?", "/logout", ".*"}
CONTENT = {
    "string": lambda client, key: client.get(key),
    "list": lambda client, key: client.lrange(key, 0, -1),
    "hash": lambda client, key: client.hgetall(key),
    "set": lambda client, key: client.smembers(key),
    "zset": lambda client, key: client.zrange(key, 0, -1),
}


@pytest.fixture(scope="module")
def lab(new_lab, sentry):
    env = {"SENTRY_DSN": sentry.dsn, "FLOWER_UNAUTHENTICATED_API": "true"}  # somebody's mistake
    return new_lab("gateway", "web", "worker-inventory", "relay", "flower", env=env)


@pytest.fixture(scope="module")
def new_client(lab):
    """Give a function that makes a client of Flower."""
    clients = []

    def new(credentials=None):
        clients.append(httpx.Client(base_url=lab.stack.flower_url, auth=credentials, trust_env=False))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def operator(lab, new_client):
    return new_client(tuple(lab.stack.env["FLOWER_BASIC_AUTH"].split(":")))


@pytest.mark.broker
class TestFlower:
    """C28."""

    @pytest.mark.parametrize("credentials", [None, ("teguh", "guessed")], ids=["none", "guessed"])
    def test_answers_anyone(self, new_client, credentials):
        """C28 part 1: every page and every answer and order of the API."""
        stranger = new_client(credentials)
        guarded = [path for path in routes() if path not in OPEN]

        answers = {
            path: {stranger.get(path).status_code, stranger.post(path).status_code} for path in guarded
        }

        assert len(guarded) > 25
        assert [path for path, codes in answers.items() if not codes <= {401, 403, 405}] == []
        assert [path for path, codes in answers.items() if not codes & {401, 403}] == []

    def test_lets_anyone_stop_a_worker(self, new_client, operator, lab):
        """C28 part 1, with the name of one that lives."""
        name = next(iter(workers(operator)))

        answer = new_client().post(f"/api/worker/shutdown/{name}")

        assert answer.status_code == 401
        assert lab.worker.is_alive()

    def test_does_not_know_the_worker(self, operator):
        """C28 part 2: the pages render with the Flower and the Celery that are pinned."""
        name = next(iter(workers(operator)))

        front, page = operator.get("/workers"), operator.get(f"/worker/{name}")

        assert (front.status_code, page.status_code) == (200, 200)
        assert name in front.text
        assert name in page.text

    def test_listens_to_the_world(self, lab):
        """C28 part 3."""
        flower = psutil.Process(lab.stack.process("flower").pid)

        listening = {each.laddr.ip for each in flower.net_connections("inet") if each.status == "LISTEN"}

        assert listening
        assert listening <= LOOPBACK
        assert "FLOWER_UNAUTHENTICATED_API" not in flower.environ()
        assert lab.stack.env["FLOWER_BASIC_AUTH"] not in " ".join(flower.cmdline())

    @pytest.mark.parametrize("password", [{}, {"FLOWER_BASIC_AUTH": ""}], ids=["unset", "empty"])
    def test_starts_without_a_password(self, lab, password):
        """C28 part 3."""
        without = {name: value for name, value in lab.stack.env.items() if name != "FLOWER_BASIC_AUTH"}
        command = ["sh", "-c", procfile.commands()["flower"]]

        refused = subprocess.run(
            command, env={**without, **password}, capture_output=True, text=True, timeout=30
        )

        assert refused.returncode != 0
        assert "FLOWER_BASIC_AUTH: set it to name:password" in refused.stderr


class TestSecret:
    def test_is_shown_wherever_it_surfaces(self, lab, operator, sentry):
        """C28 part 4."""
        body = {"ref": SECRET, "kind": "bug", "times": 9}

        with listening(lab.stack.servers.redis_url) as passed:
            id = lab.new_user().ask("probe/fail", body)
            operation = lab.wait_final(id)
            eventually(lambda: sentry.events(operation_id=id), what="the Sentry event")
            task = eventually(lambda: task_of(operator, id), what="the task in Flower")

        places = {
            "what passed through the broker": "\n".join(passed),
            "what the broker holds": held(lab),
            "Flower": shown(operator, task),
            "the logs": logged(lab),
            "the metrics": metrics(lab),
            "Sentry": "\n".join(sentry.envelopes),
            "the lists of dead letters": listed(lab),
        }
        assert (operation["status"], operation["payload"]["ref"]) == ("failed_permanent", SECRET)
        assert (task["name"], task["args"], task["kwargs"]) == ("probe.fail", f"('{id}',)", "{}")
        assert [place for place, text in places.items() if SECRET in text] == []
        assert [place for place, text in places.items() if "probe.fail" not in text] == []  # all were seen

    def test_of_a_card_is_shown_nowhere(self, lab, operator, sentry):
        """The gateway's token stands where it is needed to go on, and a card's number nowhere at all."""
        lab.stock("lamp", 10)
        user = lab.new_user()
        body = {
            "order_id": "of-a-card",
            "sku": "lamp",
            "quantity": 1,
            "amount_minor": PRICE_MINOR,
            "currency": "EUR",
            "payment_method": TOKEN,
        }

        with listening(lab.stack.servers.redis_url) as passed:
            refused = user.post("purchases", {**body, "payment_method": CARD})
            noted = user.post("purchases", {**body, "order_id": CARD})
            id = user.ask("purchases", body)
            operation = lab.wait_final(id)
            task = eventually(lambda: task_of(operator, id), what="the task in Flower")

        places = {
            "what passed through the broker": "\n".join(passed),
            "what the broker holds": held(lab),
            "Flower": shown(operator, task),
            "the logs": logged(lab),
            "the metrics": metrics(lab),
            "Sentry": "\n".join(sentry.envelopes),
            "the lists of dead letters": listed(lab),
        }
        assert operation["status"] == "succeeded"
        assert [refused.status_code, noted.status_code] == [400, 400]
        assert [place for place, text in places.items() if TOKEN in text or CARD in text] == []
        assert [column for column, text in stored(lab) if CARD in text] == []
        assert {column for column, text in stored(lab) if TOKEN in text} == {
            "operations_operationdata.payload",
            "operations_effect.request",
        }


def stored(lab):
    """Give every column of the database that holds text, with what is in it."""
    columns = lab.rows("""
        SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = 'public' AND data_type IN ('text', 'character varying', 'jsonb', 'json')""")
    for column in columns:
        table, name = column["table_name"], column["column_name"]
        rows = lab.rows(f'SELECT string_agg("{name}"::text, chr(10)) AS text FROM "{table}"')
        yield f"{table}.{name}", rows[0]["text"] or ""


def routes():
    """Give an address for every route of the installed Flower."""
    specs = [handler if isinstance(handler, URLSpec) else URLSpec(*handler) for handler in handlers]
    return [re.sub(r"\(\.[+*]\)", "any", spec.regex.pattern.removesuffix("$")) for spec in specs]


def workers(operator):
    """Give what Flower knows of the workers, once it has heard of one."""
    return eventually(lambda: operator.get("/api/workers?refresh=1").json(), what="a worker in Flower")


@contextmanager
def listening(redis_url):
    """Give a list of all that is said to the server, whichever database, while the block lasts."""
    said, end = [], uuid.uuid4().hex

    def listen():
        for each in monitor.listen():
            said.append(each["command"])
            if end in each["command"]:
                return

    with redis.Redis.from_url(redis_url) as client, client.monitor() as monitor:
        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield said
        finally:
            client.echo(end)
            listener.join()


def task_of(operator, id):
    """Give Flower's task of an operation, with its uuid, once it has ended."""
    tasks = operator.get("/api/tasks").json().items()
    own = [{**task, "uuid": uuid} for uuid, task in tasks if id in task["args"]]
    return next((task for task in own if task["state"] == "SUCCESS"), None)


def held(lab):
    """Give all that the broker, the cache and the locks hold."""
    found = []
    for number in range(3):
        with redis.Redis.from_url(lab.stack.servers.redis_url, db=number, decode_responses=True) as client:
            found += [f"{key} {CONTENT[client.type(key)](client, key)}" for key in client.scan_iter()]
    return "\n".join(found)


def shown(operator, task):
    """Give every page and answer of Flower that has to do with a task."""
    uuid, worker = task["uuid"], task["worker"]
    pages = ("/", "/workers", f"/worker/{worker}", "/tasks", f"/task/{uuid}", "/broker", "/metrics")
    answers = ("/api/workers", "/api/tasks", f"/api/task/info/{uuid}")
    return "\n".join(operator.get(path).raise_for_status().text for path in (*pages, *answers))


def logged(lab):
    logs = (lab.stack.directory / "log").iterdir()
    return "\n".join(log.read_text(errors="replace") for log in logs)


def metrics(lab):
    token = {"Authorization": f"Bearer {lab.stack.env['METRICS_TOKEN']}"}
    return httpx.get(f"{lab.stack.api_url}/metrics", headers=token, trust_env=False).raise_for_status().text


def listed(lab):
    acts = (("groups",), ("groups", "--json"), ("list",), ("list", "--json"))
    return "\n".join(lab.stack.manage("deadletters", *act) for act in acts)
