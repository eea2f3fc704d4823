"""What gunicorn serves, unless a check of ours refuses: what no worker may do must not be accepted either.

Django runs its checks for manage.py and for nobody else. The error ends gunicorn with the check's sentence.
"""

import os
from typing import Any

from django.core.handlers.wsgi import WSGIRequest
from django.core.management.base import BaseCommand
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")


class Request(WSGIRequest):
    """Takes a Content-Type that Django cannot read as none: else it raises before anybody could answer."""

    def _set_content_type_params(self, meta: Any) -> None:
        try:
            super()._set_content_type_params(meta)  # type: ignore[misc]
        except (ValueError, LookupError):
            self.content_type, self.content_params = "", {}


application = get_wsgi_application()
application.request_class = Request
BaseCommand().check(tags=["teguh"])
