"""Every request has an id: the client's if it is one, else ours."""

import uuid

import pytest


class TestRequestID:
    @pytest.mark.parametrize("given", ["r-1", "A.b_c:d-9", "x" * 100])
    def test_is_the_clients(self, client, given):
        assert client.get("/nowhere", headers={"X-Request-ID": given})["X-Request-ID"] == given

    @pytest.mark.parametrize("given", ["", "x" * 101, "a b", "a\nb", "<script>", "é", "r-1\n"])
    def test_is_ours_if_the_clients_is_no_sane_one(self, client, given):
        echoed = client.get("/nowhere", headers={"X-Request-ID": given})["X-Request-ID"]

        assert str(uuid.UUID(echoed)) == echoed

    def test_is_in_the_problem(self, client):
        response = client.get("/nowhere", headers={"X-Request-ID": "r-1"})

        assert response.json()["request_id"] == "r-1"
