"""A whole Teguh on one machine, for development, demo and tests. Production imports nothing from here."""
