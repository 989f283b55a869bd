"""The screen: Textual over a read-only view of the store. It never works on kernels itself."""
