import uuid

import pytest

from deploy.local import databases


@pytest.fixture
def name(servers):
    name = f"teguh_{uuid.uuid4().hex[:12]}"
    yield name
    servers.drop_database(name)


class TestCreate:
    def test_gives_the_url_of_the_new_database(self, servers, name):
        url = servers.create_database(name)

        assert databases.exists(name, server=url)

    def test_copies_a_template(self, servers, name):
        template = f"{name}_template"
        servers.create_database(template)

        servers.create_database(name, template=template)
        servers.drop_database(template)

        assert databases.exists(name, server=servers.database_url)
        assert not databases.exists(template, server=servers.database_url)


class TestUrlOf:
    def test_changes_the_name_and_keeps_the_rest(self):
        beside = "postgresql://postgres@/postgres?host=/run/sockets&port=5432"

        assert (
            databases.url_of("other", beside=beside)
            == "postgresql://postgres@/other?host=/run/sockets&port=5432"
        )
