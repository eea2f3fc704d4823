"""Every address of the web process."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

urlpatterns = [
    path("admin/", include("operations.admin.urls")),
    path("admin/", admin.site.urls),
    path("v1/schema", SpectacularAPIView.as_view(), name="schema"),
    path("", include("operations.urls")),
    path("", include("inventory.urls")),
    path("", include("payments.urls")),
]

handler400 = "operations.problems.bad_request"
handler403 = "operations.admin.refusals.forbidden"
handler404 = "operations.problems.not_found"
handler500 = "operations.problems.internal"
