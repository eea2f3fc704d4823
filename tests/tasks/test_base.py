"""The Celery tasks: that both ends of the wire meet, and what Celery is told about them."""

import pytest
from celery import Task

from operations import jobs
from tasks.base import BackoffMixin, DeadLetterMixin, JitterMixin, LockMixin, OperationTask, RetryMixin, app


class TestTasks:
    @pytest.mark.parametrize("job", jobs.every(), ids=lambda job: job.name)
    def test_bear_the_names_that_publish_sends(self, job):
        task = app.tasks[job.name]

        assert isinstance(task, OperationTask)
        assert task.job == job

    @pytest.mark.parametrize("job", jobs.every(), ids=lambda job: job.name)
    def test_leave_recovery_to_the_database(self, job):
        task = app.tasks[job.name]

        assert (task.acks_late, task.ignore_result) == (True, True)
        assert task.time_limit == job.hard_limit
        assert task.soft_time_limit is None

    def test_are_made_of_five_small_concerns(self):
        mixins = {LockMixin, RetryMixin, BackoffMixin, JitterMixin, DeadLetterMixin}

        assert set(OperationTask.__bases__) == {*mixins, Task}


class TestSettings:
    def test_take_json_and_nothing_else(self):
        assert app.conf.accept_content == ["json"]
        assert app.conf.task_serializer == "json"

    def test_keep_no_results_and_no_countdowns(self):
        assert app.conf.task_ignore_result is True
        assert app.conf.task_retry_on_worker_lost is False
        assert app.conf.worker_prefetch_multiplier == 1
