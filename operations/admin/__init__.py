"""What people see and do in the browser. Each module registers its part; this file names them all."""

from django.contrib import admin

from operations.admin import acts, caches, controls, dead_letters, effects, operations, people, records

__all__ = ["acts", "caches", "controls", "dead_letters", "effects", "operations", "people", "records"]

admin.site.index_template = "operations/admin/overview.html"
