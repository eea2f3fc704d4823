"""Jobs that take long, each in its own way of not letting go: an app for EXTRA_APPS beside tests.probes."""
