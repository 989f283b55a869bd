"""Experiments with the whole model beside its profile: other ways to run it, and targets at their floor."""
