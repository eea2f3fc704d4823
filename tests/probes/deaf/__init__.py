"""An app for EXTRA_APPS by which a test makes a worker deaf."""
