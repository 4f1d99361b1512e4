// The card that the emulation pretends to be, for the questions that launchers ask of it: sm_90,
// with few multiprocessors (BYTEBOUND_EMULATION_SMS).
#include <cuda_runtime_api.h>

#include <cstring>

#include <cstdio>

#include "grid.h"

using emulation::kMaxDynamicShared;
using emulation::num_multiprocessors;

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "a call that the emulated card refuses";
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated card");
  properties->major = 9;
  properties->multiProcessorCount = static_cast<int>(num_multiprocessors());
  properties->totalGlobalMem = std::size_t{1} << 33;
  properties->l2CacheSize = 1 << 25;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = static_cast<int>(num_multiprocessors());
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(kMaxDynamicShared);
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, std::size_t num_bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, num_bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}

// Every tensor that comes here is of this card.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  *attributes = {};
  attributes->type = cudaMemoryTypeDevice;
  return cudaSuccess;
}

// As many blocks as the grid runs at once for each multiprocessor.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                          const void*,
                                                          int,
                                                          std::size_t) {
  *blocks = 2;
  return cudaSuccess;
}

}  // extern "C"
