"""Other engines on the same yardstick: the same prompts, the same result files."""
