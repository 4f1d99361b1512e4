"""One folder per op: reference.py is the definition, op.py checks and launches.

The kernel of an op is csrc/<op>.cu, its launcher's contract csrc/<op>.h.
"""
