"""The domain of the benchmarks: one table that both sides write one row to for each request."""
