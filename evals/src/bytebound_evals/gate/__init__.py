"""Compares two results of the same conditions, and says what got worse beyond noise."""
