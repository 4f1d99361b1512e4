"""The CUDA backend: the ops of bytebound-kernels over explicit state. It agrees with `reference`.

Nothing outside imports this package before CUDA was found usable: its modules need the kernels with
their extra ``prefill``, which brings Triton.
"""
