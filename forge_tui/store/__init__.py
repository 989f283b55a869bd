"""The only SQL of the project: one SQLite file, one writer for each session, any number of readers."""
