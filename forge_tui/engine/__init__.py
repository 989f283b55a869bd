"""See the map in CONTRIBUTING.md."""
