// Launches a kernel and hands back the error of that very launch.
#pragma once

#include <cuda_runtime.h>

#include "../status.h"

namespace bytebound {

template <typename... Params, typename... Args>
Status launch(void (*kernel)(Params...), dim3 grid, dim3 block, void* stream, const Args&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
  if (error != cudaSuccess) {
    // The error is reported here, so it must not surface again at the next launch.
    cudaGetLastError();
  }
  return error;
}

}  // namespace bytebound
