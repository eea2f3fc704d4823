"""Jobs and switches that only tests know: a Django app for EXTRA_APPS, so the product has no test code."""
