"""The addresses of the reads."""

from django.urls import path

from benchmarks.reads import views

urlpatterns = [
    path("cached/<int:user_id>", views.cached),
    path("bare/<int:user_id>", views.bare),
    path("missed/<int:user_id>", views.cached),
    path("query/<int:user_id>", views.query),
]
