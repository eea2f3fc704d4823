"""The Django app, for its management commands."""

from django.apps import AppConfig


class TasksConfig(AppConfig):
    name = "tasks"
