"""How the house is wired: settings, Celery, URLs. Names the other packages as strings and imports none."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
