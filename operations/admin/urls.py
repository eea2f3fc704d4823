"""Addresses of the admin that stand before its own."""

from django.contrib import admin
from django.urls import path

from operations.admin import jump

urlpatterns = [path("search/", admin.site.admin_view(jump.page))]
