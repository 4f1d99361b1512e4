#include "device_probe.h"

#ifdef BYTEBOUND_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace bytebound {

#ifdef BYTEBOUND_WITH_CUDA

Probe probe_devices() {
  Probe probe;
  cudaDriverGetVersion(&probe.driver_version);
  int num_devices = 0;
  probe.status = cudaGetDeviceCount(&num_devices);
  for (int i = 0; i < num_devices && probe.status == kOk; ++i) {
    cudaDeviceProp prop;
    probe.status = cudaGetDeviceProperties(&prop, i);
    if (probe.status == kOk) {
      probe.devices.push_back({i, prop.name, prop.major, prop.minor, prop.multiProcessorCount,
                               static_cast<std::size_t>(prop.l2CacheSize), prop.totalGlobalMem});
    }
  }
  // A failed query leaves its error behind for the next caller of cudaGetLastError.
  cudaGetLastError();
  return probe;
}

Status device_of_pointer(const void* p_memory, int* device) {
  cudaPointerAttributes attributes;
  const cudaError_t error = cudaPointerGetAttributes(&attributes, p_memory);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return error;
  }
  const bool on_device =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  *device = on_device ? attributes.device : -1;
  return kOk;
}

int toolkit_version() {
  return CUDART_VERSION;
}

#else

Probe probe_devices() {
  return {};
}

Status device_of_pointer(const void*, int* device) {
  *device = -1;
  return kOk;
}

int toolkit_version() {
  return 0;
}

#endif

}  // namespace bytebound
