"""What a promise costs: Teguh beside Django and Celery without one. docs/benchmarks.md says how."""
