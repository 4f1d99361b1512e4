// In place of csrc/cuda/dynamic_shared.cuh.
#pragma once

#define BYTEBOUND_DYNAMIC_SHARED(type, name) \
  type* const name [[maybe_unused]] =        \
      reinterpret_cast<std::remove_reference_t<decltype(*name)>*>(::emulation::t_shared)
