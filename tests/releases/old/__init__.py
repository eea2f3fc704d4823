"""The release before the change."""
