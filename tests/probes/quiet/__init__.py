"""A job that does nothing, for counting: an app for EXTRA_APPS beside tests.probes."""
