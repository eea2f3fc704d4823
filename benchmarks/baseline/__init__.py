"""The other side: a project of Django and Celery that does the same work, and promises nothing."""
