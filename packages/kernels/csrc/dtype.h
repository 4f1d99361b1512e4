// Element types of the tensors that cross the binding. Knows no CUDA type and no Python type.
#pragma once

namespace bytebound {

// The numbers are part of the ABI: bytebound_kernels/_tensor.py repeats them.
enum class DType : int {
  kFloat16 = 0,
  kBFloat16 = 1,
  kFloat32 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kUInt8 = 5,
  kFloat8E4M3 = 6,
  kFloat64 = 7,
};

}  // namespace bytebound
