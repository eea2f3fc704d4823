"""What runs in workers, and the tools a run needs."""
