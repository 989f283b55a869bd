"""Widgets on the line API."""
