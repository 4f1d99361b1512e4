"""The whole set in one run: speed of a model, quality of its 4-bit forms, and a report."""
