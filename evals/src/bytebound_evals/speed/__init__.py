"""Speed of an engine, ours or another, as samples of one kind and metrics of one naming."""
