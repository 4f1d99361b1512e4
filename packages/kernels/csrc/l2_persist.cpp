#include "l2_persist.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "cuda/device_guard.h"

namespace bytebound {
namespace {

// A failed call leaves its error behind for the next caller of cudaGetLastError.
Status settled(cudaError_t error) {
  if (error != cudaSuccess) {
    cudaGetLastError();
  }
  return error;
}

// A window of 0 bytes is none.
cudaError_t set_window(const void* p_memory,
                       std::size_t num_bytes,
                       float hit_ratio,
                       cudaStream_t stream) {
  cudaStreamAttrValue value = {};
  value.accessPolicyWindow.base_ptr = const_cast<void*>(p_memory);
  value.accessPolicyWindow.num_bytes = num_bytes;
  value.accessPolicyWindow.hitRatio = hit_ratio;
  value.accessPolicyWindow.hitProp =
      num_bytes > 0 ? cudaAccessPropertyPersisting : cudaAccessPropertyNormal;
  // The rest of the range must not push out what is kept.
  value.accessPolicyWindow.missProp =
      num_bytes > 0 ? cudaAccessPropertyStreaming : cudaAccessPropertyNormal;
  return cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value);
}

cudaError_t grow_set_aside(std::size_t wanted, std::int64_t* set_aside_bytes) {
  std::size_t current = 0;
  cudaError_t error = cudaDeviceGetLimit(&current, cudaLimitPersistingL2CacheSize);
  if (error == cudaSuccess && current < wanted) {
    error = cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, wanted);
    if (error == cudaSuccess) {
      // The device rounds as it likes.
      error = cudaDeviceGetLimit(&current, cudaLimitPersistingL2CacheSize);
    }
  }
  *set_aside_bytes = static_cast<std::int64_t>(current);
  return error;
}

}  // namespace

Status l2_persist_limits(int device, L2PersistLimits* limits) {
  int set_aside = 0;
  int window = 0;
  cudaError_t error =
      cudaDeviceGetAttribute(&set_aside, cudaDevAttrMaxPersistingL2CacheSize, device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&window, cudaDevAttrMaxAccessPolicyWindowSize, device);
  }
  *limits = {set_aside, window};
  return settled(error);
}

Status l2_persist(const void* p_memory,
                  std::int64_t num_bytes,
                  float hit_ratio,
                  int device,
                  void* stream,
                  std::int64_t* set_aside_bytes) {
  L2PersistLimits limits = {};
  const Status status = l2_persist_limits(device, &limits);
  if (status != kOk) {
    return status;
  }
  if (num_bytes < 1 || num_bytes > limits.window_bytes) {
    return kSizeOutOfRange;
  }
  const DeviceGuard guard(device);
  if (guard.status() != cudaSuccess) {
    return settled(guard.status());
  }
  const double kept = std::ceil(static_cast<double>(num_bytes) * hit_ratio);
  const auto wanted = std::min(static_cast<std::int64_t>(kept), limits.set_aside_bytes);
  cudaError_t error = grow_set_aside(static_cast<std::size_t>(wanted), set_aside_bytes);
  if (error == cudaSuccess) {
    error = set_window(p_memory, static_cast<std::size_t>(num_bytes), hit_ratio,
                       static_cast<cudaStream_t>(stream));
  }
  return settled(error);
}

Status l2_persist_reset(void* stream) {
  cudaError_t error = cudaSuccess;
  int device = 0;
#if CUDART_VERSION >= 12080
  error = cudaStreamGetDevice(static_cast<cudaStream_t>(stream), &device);
#else
  error = cudaGetDevice(&device);
#endif
  if (error != cudaSuccess) {
    return settled(error);
  }
  const DeviceGuard guard(device);
  error = guard.status();
  if (error == cudaSuccess) {
    error = set_window(nullptr, 0, 0.0F, static_cast<cudaStream_t>(stream));
  }
  if (error == cudaSuccess) {
    error = cudaCtxResetPersistingL2Cache();
  }
  return settled(error);
}

}  // namespace bytebound
