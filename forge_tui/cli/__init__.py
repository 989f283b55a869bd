"""The command line: typer, with heavy imports inside the commands."""
