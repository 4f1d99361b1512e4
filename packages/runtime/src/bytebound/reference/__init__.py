"""The reference backend: plain PyTorch functions over explicit state. It is the definition; kernels answer to it."""
