"""The engine: the asyncio search loop, the one writer of the store, in a process of its own."""
