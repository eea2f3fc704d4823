"""Our own settings, with the addresses of the reads."""

from config.settings import *  # noqa: F403 (all of them are meant)

ROOT_URLCONF = "benchmarks.reads.urls"
