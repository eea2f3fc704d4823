import json
import os
import shlex
import signal
import subprocess
import sys
from itertools import takewhile

import psutil
import pytest

pytestmark = [pytest.mark.process, pytest.mark.embedded]


@pytest.fixture
def up(tmp_path):
    unnamed = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
    command = [sys.executable, "-m", "deploy.local.up", "--directory", tmp_path]
    process = subprocess.Popen(command, env=unnamed, stdout=subprocess.PIPE, text=True)
    process.said = list(takewhile(lambda line: not line.startswith("ready"), process.stdout))
    yield process
    process.kill()
    process.communicate()


class TestUp:
    def test_prints_a_request_that_works(self, up):
        printed = next(line for line in up.said if line.startswith("curl"))

        answer = subprocess.run(shlex.split(printed), capture_output=True, text=True, check=True).stdout

        assert json.loads(answer)["status"] == "queued"

    @pytest.mark.parametrize(("ending", "exit_code"), [(signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)])
    def test_leaves_nothing_behind(self, up, ending, exit_code):
        started = psutil.Process(up.pid).children(recursive=True)

        up.send_signal(ending)

        assert up.wait(30) == exit_code
        assert len(started) > 8  # two servers, the guardian, five processes, and their children
        assert psutil.wait_procs(started, timeout=20)[1] == []
