"""Forge TUI: makes a PyTorch model faster on the device it runs on."""

__version__ = "0.1.0"
