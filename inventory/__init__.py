"""What users own, copied from the provider that knows."""
