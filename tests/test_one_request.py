"""One request from its POST to the fresh read after it: the story to read first.

A console asks for its player's inventory to be copied from the provider. It asks twice, because the first
answer may have been lost; a worker does it once; and a page that still shows the old inventory can act on
nothing.

To follow it in the code, open, in this order: operations/api.py, operations/accept.py,
operations/lifecycle.py, operations/publish.py, tasks/run.py and inventory/jobs.py.
"""

import pytest

from inventory.models import InventoryItem
from operations.models import AfterCommit, IdempotencyRecord, Operation, ResourceFence
from tasks import after_commit
from tasks.base import app
from tests.factories import history

SYNC = "/v1/inventory/sync"
THIS_REQUEST = {"Idempotency-Key": "sync-after-level-7"}


@pytest.mark.broker
@pytest.mark.django_db(transaction=True)
def test_one_request(api, user, broker, provider):
    provider.has(version=7, sword=1, potion=3)
    what_the_page_shows = api.get("/v1/inventory")
    assert what_the_page_shows.json() == {"version": 0, "items": []}

    # operations/api.py: the console asks. It hears 202, and where to ask what became of it.
    first = api.post(SYNC, "{}", content_type="application/json", headers=THIS_REQUEST)

    assert first.status_code == 202
    assert first["Location"] == first.json()["status_url"] == f"/v1/operations/{first.json()['operation_id']}"
    assert first["Retry-After"] == "2"

    # operations/accept.py: before it heard that, there were a row, its key, and one line of history.
    operation = Operation.objects.get()
    assert str(operation.id) == first.json()["operation_id"]
    assert (operation.status, operation.reason, operation.attempt) == ("queued", "accepted", 0)
    assert (operation.owner, operation.resource) == (user, f"inventory:user:{user.pk}")
    assert IdempotencyRecord.objects.get().operation == operation
    assert history(operation) == [("", "queued", "accepted")]

    # operations/publish.py: a message waits for a worker. It says which operation, and nothing about it.
    hint = broker.deliver("inventory.sync")
    assert hint.headers["task"] == "inventory.sync"
    assert hint.payload[:2] == [[str(operation.id)], {}]

    # The console did not hear the answer and asks again. It gets the same operation; nothing else happens.
    again = api.post(SYNC, "{}", content_type="application/json", headers=THIS_REQUEST)

    assert (again.status_code, again["Idempotent-Replayed"]) == (202, "true")
    assert again.json()["operation_id"] == first.json()["operation_id"]
    assert (Operation.objects.count(), broker.depth()) == (1, 0)

    # tasks/run.py: a worker looks at what the message names.
    app.tasks["inventory.sync"].run(*hint.payload[0])

    # inventory/jobs.py: it asked the provider once, in the operation's name.
    [asked] = provider.asked
    assert asked.url.path == f"/v1/users/{user.pk}/inventory"
    assert asked.headers["X-Operation-ID"] == str(operation.id)

    # operations/lifecycle.py: what the handler wrote and the operation's end were committed together.
    operation.refresh_from_db()
    assert (operation.status, operation.runs, operation.attempt) == ("succeeded", 1, 1)
    assert operation.data.result == {"version": 7, "items": 2}
    owned = InventoryItem.objects.filter(user=user).order_by("sku")
    assert list(owned.values_list("sku", "quantity")) == [("potion", 3), ("sword", 1)]
    assert history(operation) == [
        ("", "queued", "accepted"),
        ("queued", "processing", ""),
        ("processing", "succeeded", ""),
    ]

    # The fence knows whose commit it was, and nothing is owed to the outside any more: tasks/after_commit.py.
    fence = ResourceFence.objects.get(resource=operation.resource)
    assert (fence.fence, fence.applied_version, fence.applied_by) == (1, 7, operation.id)
    after_commit.forget_settled()
    assert not AfterCommit.objects.exists()

    # The console looks, and the truth is there; the cached inventory is the new one.
    status = api.get(first["Location"])
    assert status.json()["status"] == "succeeded"
    fresh = api.get("/v1/inventory")
    assert fresh.json() == {
        "version": 7,
        "items": [{"sku": "potion", "quantity": 3}, {"sku": "sword", "quantity": 1}],
    }
    assert fresh["ETag"] == '"7"'

    # A page that still shows version 0 acts on it, and is told to look first.
    from_an_old_page = {"Idempotency-Key": "sync-from-an-old-page", "If-Match": what_the_page_shows["ETag"]}
    refused = api.post(SYNC, "{}", content_type="application/json", headers=from_an_old_page)

    assert (refused.status_code, refused["Content-Type"]) == (412, "application/problem+json")
    assert Operation.objects.count() == 1

    # And the first request, whenever it comes again, is answered with what became of it.
    much_later = api.post(SYNC, "{}", content_type="application/json", headers=THIS_REQUEST)
    assert (much_later.status_code, much_later.json()) == (200, status.json())
