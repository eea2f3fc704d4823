"""Two releases of one small project: the same job with its payload before and after a change."""
