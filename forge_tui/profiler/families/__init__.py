"""Families of signatures of one callable, and the dimensions that vary in them. Pure, no torch."""
