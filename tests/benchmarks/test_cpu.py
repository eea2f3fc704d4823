"""CPU time is counted whole, also of what has ended."""

import subprocess
import sys

import psutil

from benchmarks import cpu

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


class TestSecondsOf:
    def test_counts_a_process_to_less_than_a_tick(self):
        child = subprocess.Popen([sys.executable, "-c", f"{BURN}input()"], stdin=subprocess.PIPE)
        try:
            _wait_until_it_sleeps(child)
            first, again = cpu.seconds_of(child.pid), cpu.seconds_of(child.pid)
        finally:
            child.communicate(b"\n")

        assert 0.3 <= first < 1
        assert again - first < 0.005  # a tick of /proc is 0.01

    def test_counts_children_that_have_ended(self):
        program = (
            f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\n"
            "print(1, flush=True)\ninput()"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert parent.stdout.readline() == b"1\n"
            seconds = cpu.seconds_of(parent.pid)
        finally:
            parent.communicate(b"\n")

        assert seconds >= 0.29  # what the child burnt, down to the tick in which it ended

    def test_leaves_out_the_child_it_is_told_to(self):
        program = (
            f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {BURN + 'input()'!r}]).wait()"
        )
        parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        try:
            child = _child_of(parent)
            _wait_until_it_sleeps(child)
            seconds = cpu.seconds_of(parent.pid, leaving_out=frozenset({child.pid}))
        finally:
            parent.communicate(b"\n")

        assert seconds < 0.3  # the start of an interpreter


def _child_of(parent):
    while not (children := psutil.Process(parent.pid).children()):
        pass
    return children[0]


def _wait_until_it_sleeps(process):
    while cpu.seconds_of(process.pid) < 0.3 or psutil.Process(process.pid).status() != psutil.STATUS_SLEEPING:
        pass
