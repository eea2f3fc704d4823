"""The addresses of payments, beside those of its jobs."""

from django.urls import path

from payments.webhooks import StripeWebhook

urlpatterns = [path("v1/webhooks/stripe", StripeWebhook.as_view(), name="stripe-webhook")]
