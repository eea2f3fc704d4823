import re

import pytest

from deploy.local.procfile import ROOT, commands

README = (ROOT / "README.md").read_text()


class TestReadme:
    @pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
    def test_links_to_what_is_there(self, link):
        assert (ROOT / link).exists()

    def test_has_a_sentence_for_each_process(self):
        assert re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE) == list(commands())

    @pytest.mark.parametrize("target", sorted(set(re.findall(r"(?m)(?:^|`)make ([a-z-]+)", README))))
    def test_names_commands_that_exist(self, target):
        assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
