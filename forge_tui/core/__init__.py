"""The words every room shares: records, events, errors. Imports no other room."""
