"""Child processes: messages, limits, clean environments, killing that works."""
