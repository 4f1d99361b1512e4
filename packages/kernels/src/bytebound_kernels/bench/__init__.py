"""Measures this package's kernels on the machine at hand: python -m bytebound_kernels.bench."""
