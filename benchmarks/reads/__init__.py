"""Reads of one value in four ways: through our cache and without it, when it is there and when it is not."""
