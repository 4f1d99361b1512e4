#include "status.h"

#ifdef BYTEBOUND_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace bytebound {

std::string status_name(Status status) {
  switch (status) {
    case kOk:
      return "ok";
    case kNotInstantiated:
      return "not instantiated";
    case kSizeOutOfRange:
      return "size out of range";
    default:
#ifdef BYTEBOUND_WITH_CUDA
      return cudaGetErrorName(static_cast<cudaError_t>(status));
#else
      return "unknown";
#endif
  }
}

std::string status_text(Status status) {
  switch (status) {
    case kOk:
      return "no error";
    case kNotInstantiated:
      return "no kernel was compiled for this combination of element types";
    case kSizeOutOfRange:
      return "a size is outside of what one launch can express";
    default:
#ifdef BYTEBOUND_WITH_CUDA
      return cudaGetErrorString(static_cast<cudaError_t>(status));
#else
      return "unknown status";
#endif
  }
}

void throw_status(Status status, const char* op, NamedSizes sizes) {
  std::string message = std::string(op) + ": " + status_name(status) + ": " + status_text(status);
  const char* separator = " (";
  for (const auto& [name, value] : sizes) {
    message += separator + std::string(name) + "=" + std::to_string(value);
    separator = ", ";
  }
  if (sizes.size() > 0) {
    message += ")";
  }
  throw StatusError(status, status_name(status), message);
}

}  // namespace bytebound
