"""What a client may ask for as the form of its answer."""

import pytest

pytestmark = pytest.mark.django_db

PATH = "/v1/inventory"


class TestNegotiation:
    @pytest.mark.parametrize("wanted", ["", "*/*", "application/json", "text/html, */*;q=0.1"])
    def test_gives_json(self, api, wanted):
        assert api.get(PATH, HTTP_ACCEPT=wanted)["Content-Type"] == "application/json"

    @pytest.mark.parametrize("wanted", ["text/html", "application/xml, image/*"])
    def test_refuses_what_is_no_json(self, api, wanted):
        response = api.get(PATH, HTTP_ACCEPT=wanted)

        assert (response.status_code, response["Content-Type"]) == (406, "application/problem+json")
