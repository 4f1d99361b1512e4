// What a launcher returns, and the one place that turns it into an exception.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>

namespace bytebound {

// Zero is success, a positive number is a cudaError_t, a negative one is one of ours.
using Status = int;

constexpr Status kOk = 0;
constexpr Status kNotInstantiated = -1;  // no kernel for this combination of element types
constexpr Status kSizeOutOfRange = -2;   // a size that the launch cannot express

struct StatusError : std::runtime_error {
  StatusError(Status status, std::string name, const std::string& message)
      : std::runtime_error(message), status(status), name(std::move(name)) {}

  Status status;
  std::string name;  // "cudaErrorLaunchFailure"
};

// The symbolic name of a status and the sentence that explains it.
std::string status_name(Status status);
std::string status_text(Status status);

using NamedSizes = std::initializer_list<std::pair<const char*, std::int64_t>>;

[[noreturn]] void throw_status(Status status, const char* op, NamedSizes sizes);

// Throws StatusError with the op and its sizes unless the launch succeeded.
inline void raise_if_failed(Status status, const char* op, NamedSizes sizes) {
  if (status != kOk) {
    throw_status(status, op, sizes);
  }
}

}  // namespace bytebound
