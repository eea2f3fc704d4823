"""The addresses of operations: one below /v1/ for each job with a route, and their status."""

from django.urls import path

from operations import api, cancel_api, health, jobs, list_api, metrics, status_api

urlpatterns = [
    *(path(f"v1/{job.route}", api.view_of(job), name=job.name) for job in jobs.every() if job.route),
    path("v1/operations", list_api.OperationList.as_view(), name="operations"),
    path("v1/operations/<uuid:operation_id>", status_api.OperationDetail.as_view(), name="operation"),
    path("v1/operations/<uuid:operation_id>/cancel", cancel_api.Cancel.as_view(), name="cancel"),
    path("metrics", metrics.show),
    path("health/live", health.live),
    path("health/ready", health.ready),
]
