"""What a session came to: the record behind `--json`, a table for the terminal, a Markdown document."""
