"""A report over result files: what was measured, under which conditions, with plots."""
