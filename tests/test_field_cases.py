"""docs/field-cases.md says which test covers which part of a case; here it is held to that."""

import ast
import re
from itertools import groupby

import pytest

from deploy.local.procfile import ROOT

PAGE = (ROOT / "docs" / "field-cases.md").read_text()
STORIES, TABLE = PAGE.split("<!-- cases:begin -->")
PARTS = re.findall(r"^\| (C\d\d) \| (\d+)\. .+? \| (.*) \|$", TABLE, re.MULTILINE)
TESTS = [(f"{case}.{part}", test) for case, part, cell in PARTS for test in re.findall(r"`([^`]+)`", cell)]


class TestFieldCases:
    def test_every_case_has_parts_without_a_gap(self):
        told = re.findall(r"^\| (C\d\d) \|", STORIES, re.MULTILINE)
        numbers = {
            case: [int(part) for _, part, _ in parts] for case, parts in groupby(PARTS, lambda row: row[0])
        }

        assert sorted(numbers) == sorted(told)
        assert all(parts == list(range(1, len(parts) + 1)) for parts in numbers.values())

    def test_every_part_names_a_test(self):
        assert [f"{case}.{part}" for case, part, cell in PARTS if "::test_" not in cell] == []

    @pytest.mark.parametrize("test", [test for _, test in TESTS], ids=[part for part, _ in TESTS])
    def test_every_named_test_exists(self, test):
        file, *names = test.split("::")
        found = ast.parse((ROOT / file).read_text())
        for name in names:
            found = next(node for node in found.body if getattr(node, "name", "") == name)
        assert isinstance(found, ast.FunctionDef)
