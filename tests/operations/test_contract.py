"""docs/answers.md, walked row by row: status, headers and body are so, and are described so."""

import ast
import re
from typing import NamedTuple

import pytest
from django.test import Client

from deploy.local.procfile import ROOT
from operations.models import Status
from operations.serializers import OperationView
from tests.operations.answers import described, is_problem
from tests.operations.cases import Cases

OF_ANY_SERVER = {"Content-Type", "Content-Length", "Vary", "Allow"}
OF_EVERY_PAGE = {"X-Content-Type-Options", "Referrer-Policy", "Cross-Origin-Opener-Policy", "X-Frame-Options"}
LAST_ROW = 28
TABLE = (ROOT / "docs" / "answers.md").read_text().partition("<!-- answers:begin -->")[2]


class Row(NamedTuple):
    """One case; what a cell names stands in `quotes`, and a dash is nothing."""

    number: str
    case: str
    asked: str
    route: str
    status: str
    headers: str
    without: str
    body: str
    tests: str


def named(cell):
    return re.findall(r"`([^`]+)`", cell)


ROWS = [
    Row(*map(str.strip, line.strip("|").split("|"))) for line in re.findall(r"^\| \d.*$", TABLE, re.MULTILINE)
]


@pytest.fixture(scope="module")
def paths():
    return described(Client())["paths"]


@pytest.mark.django_db(transaction=True)
class TestRow:
    @pytest.mark.parametrize("row", ROWS, ids=[f"{row.number}-{named(row.case)[0]}" for row in ROWS])
    def test_is_answered_and_described_so(self, request, row, paths):
        answer = getattr(Cases(request), *named(row.case))()

        assert answer.status_code == int(row.status)
        assert answer.headers.keys() >= {"X-Request-ID", *named(row.headers)}
        assert not set(named(row.without)) & answer.headers.keys()
        assert is_body(named(row.body), answer)
        for route in named(row.route) if row.status != "403" else ():  # no job needs a permission yet
            method, path = route.split()
            assert is_described(paths[path][method.lower()]["responses"][row.status], answer)


class TestTable:
    def test_has_every_row(self):
        assert sorted({int(row.number) for row in ROWS}) == list(range(1, LAST_ROW + 1))

    def test_has_every_case(self):
        walked = {case for row in ROWS for case in named(row.case)}

        assert walked | {"post", "get", "cancel"} == {name for name in vars(Cases) if name[0] != "_"}

    def test_names_tests_that_exist(self):
        assert all("::test_" in row.tests for row in ROWS)
        for test in {test for row in ROWS for test in named(row.tests)}:
            file, *names = test.split("::")
            found = ast.parse((ROOT / file).read_text())
            for name in names:
                found = next(node for node in found.body if getattr(node, "name", "") == name)
            assert isinstance(found, ast.FunctionDef)


def is_body(body, answer):
    if not body:
        return answer.content == b""
    if body[0] not in Status.values:
        return is_problem(answer, answer.status_code, *body)
    assert answer["Content-Type"] == "application/json"
    assert answer.json().keys() == OperationView().fields.keys()
    return [answer.json()["status"]] == body


def is_described(told, answer):
    required = {name for name, header in told["headers"].items() if header.get("required")}
    assert required <= answer.headers.keys()
    assert answer.headers.keys() <= told["headers"].keys() | OF_ANY_SERVER | OF_EVERY_PAGE
    return list(told.get("content", {})) == ([answer["Content-Type"]] if answer.content else [])
