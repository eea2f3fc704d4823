"""The documents say what the code does: tables are held to it, and what they name exists."""

import re
from pathlib import Path

import pytest

from operations import cache_kinds, cache_report, problems
from operations.models import Operation, Reason

ROOT = Path(__file__).parent.parent
QUOTED = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]+\]\((?!https?:|#)([^)#]+)")


def text_of(document):
    return (ROOT / document).read_text()


def rows(document, name):
    """Give the cells of the table between `<!-- name:begin -->` and `<!-- name:end -->`, without its head."""
    table = text_of(document).partition(f"<!-- {name}:begin -->")[2].partition(f"<!-- {name}:end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(cell):
    """Give what a cell names in `quotes`; a dash is nothing."""
    return QUOTED.findall(cell) or [""]


class TestLifecycle:
    def test_tells_the_moves_that_the_code_has(self):
        told = [
            (source, to, reason)
            for sources, targets, reasons, *_ in rows("docs/lifecycle.md", "moves")
            for source in named(sources)
            for to in named(targets)
            for reason in named(reasons)
        ]

        assert len(told) == len(set(told))
        assert set(told) == {
            (move.source, move.to, reason) for move in Operation.MOVES for reason in move.reasons
        }

    def test_explains_every_reason(self):
        table = text_of("docs/lifecycle.md").partition("## Reasons")[2]

        explained = re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE)

        assert sorted(explained) == sorted(Reason.values)


class TestEveryDocument:
    DOCUMENTS = [str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]]

    def test_is_there(self):
        wanted = {"README.md", "CHANGELOG.md", "docs/lifecycle.md", "docs/style.md", "docs/field-cases.md"}

        assert wanted <= set(self.DOCUMENTS)

    @pytest.mark.parametrize("document", DOCUMENTS)
    def test_links_to_what_exists(self, document):
        linked = [link for link in LINK.findall(text_of(document)) if not link.startswith("/")]

        missing = [link for link in linked if not (ROOT / document).parent.joinpath(link).exists()]

        assert missing == []


class TestProblems:
    def test_documents_each_problem_that_is_answered(self):
        answered = {
            (problem.name, str(problem.status))
            for problem in [*problems.PROBLEMS.values(), problems.INTERNAL]
        }

        documented = set(re.findall(r"</a>`([a-z-]+)` \| (\d+) \|", text_of("docs/problems.md")))

        assert documented == answered


class TestCaches:
    def test_are_told_as_the_code_declares_them(self):
        told = text_of("docs/caches.md").partition("<!-- caches:begin -->")[2]

        declared = [
            cached for cached in cache_kinds.every() if not cached.name.startswith(("tests:", "entries:"))
        ]
        assert told.partition("<!-- caches:end -->")[0].strip() == cache_report.page(declared)
