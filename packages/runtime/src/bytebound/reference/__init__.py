"""The reference backend: plain PyTorch over explicit state. It is the definition."""
