"""Models by their Hugging Face configuration, with random weights and inputs of their own."""
