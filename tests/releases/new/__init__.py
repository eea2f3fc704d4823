"""The release after the change."""
