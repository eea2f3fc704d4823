"""What every answer of the API has in common."""

PROBLEM = "application/problem+json"


def is_problem(response, status, name):
    body = response.json()
    assert (response.status_code, response["Content-Type"]) == (status, PROBLEM)
    assert (body["type"], body["status"]) == (f"/docs/problems#{name}", status)
    assert body["title"]
    assert body["request_id"] == response["X-Request-ID"]
    return True


def told(response):
    """Give all that an answer tells, but for the count of the requests of the one who asks."""
    headers = {name: value for name, value in response.headers.items() if name != "RateLimit"}
    return response.status_code, response.content, headers


def described(client):
    """Give the OpenAPI description as a client reads it."""
    return client.get("/v1/schema", headers={"Accept": "application/json"}).json()
