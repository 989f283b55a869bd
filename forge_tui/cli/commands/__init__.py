"""One module a command; heavy imports inside."""
