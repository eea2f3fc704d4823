"""The payments app: what is sold, who ordered it, and the money that moved."""

from django.apps import AppConfig


class PaymentsConfig(AppConfig):
    name = "payments"
