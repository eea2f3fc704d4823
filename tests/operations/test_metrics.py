"""The page of numbers: for who has the token, and with nothing on it that names a person or a request."""

import pytest

from tests.factories import make_operation, work

TOKEN = {"Authorization": "Bearer metrics-token-of-the-tests"}


class TestShow:
    def test_shows_the_numbers_to_who_has_the_token(self, client):
        response = client.get("/metrics", headers=TOKEN)

        assert response.status_code == 200
        assert b"# TYPE ops_operations_accepted_total counter" in response.content

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "metrics-token-of-the-tests"},
            {"Authorization": "Bearer metrics-token-of-the-tests-and-more"},
            {"Authorization": "Bearer é"},
        ],
    )
    def test_is_not_there_for_anybody_else(self, client, headers):
        assert client.get("/metrics", headers=headers).status_code == 404

    @pytest.mark.parametrize("authorization", ["Bearer ", "Bearer", ""])
    def test_is_there_for_nobody_without_a_token_in_the_settings(self, client, settings, authorization):
        settings.METRICS_TOKEN = ""

        assert client.get("/metrics", headers={"Authorization": authorization}).status_code == 404

    def test_only_reads(self, client):
        assert client.post("/metrics", headers=TOKEN).status_code == 405

    @pytest.mark.django_db(transaction=True)
    def test_names_no_user_operation_or_key(self, client, provider):
        provider.has(version=1, sword=1)
        operation = work(make_operation(idempotency_key="a-very-own-key"))

        page = client.get("/metrics", headers=TOKEN).content.decode()

        assert 'ops_operations_completed_total{error_category="none",job_type="inventory.sync"' in page
        assert "a-very-own-key" not in page
        assert str(operation.id) not in page
        assert operation.resource not in page
