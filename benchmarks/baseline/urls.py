"""The addresses of the project."""

from django.urls import path

from benchmarks.baseline.views import Entries

urlpatterns = [path("v1/entries", Entries.as_view())]
