// What this build holds and which CUDA devices this process sees. Creates no CUDA context.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "status.h"

namespace bytebound {

struct DeviceInfo {
  int index;
  std::string name;
  int major;  // compute capability, 9 of 9.0
  int minor;
  int num_sms;
  std::size_t l2_bytes;
  std::size_t memory_bytes;
};

struct Probe {
  Status status = kOk;     // kOk: the devices are listed
  int driver_version = 0;  // 13000 for CUDA 13.0; 0: no driver is installed
  std::vector<DeviceInfo> devices;
};

// Initialises the CUDA driver, which a process that is to be forked must not have done.
Probe probe_devices();

// The device that owns a pointer, or a negative number for memory that is on none.
Status device_of_pointer(const void* p_memory, int* device);

// CUDART_VERSION of the toolkit: 13000 for 13.0; 0 in a build without CUDA code.
int toolkit_version();

}  // namespace bytebound
