"""The search against published and plain ways to search, on simulated operators: `make bench-search`."""
