"""One stack with everything that lets a person see and act, and somebody who listens where Sentry would."""

import pytest

from tests.faults.conftest import effects, new_lab  # noqa: F401 (fixtures of this folder too)
from tests.operate import sentry as stand_in


@pytest.fixture(scope="module")
def sentry():
    with stand_in.serving() as sentry:
        yield sentry
