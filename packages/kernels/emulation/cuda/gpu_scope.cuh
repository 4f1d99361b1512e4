// In place of csrc/cuda/gpu_scope.cuh. Before each load others may run, so a loop that waits for a
// value lets its writer come to it; a store is something that others may wait for.
#pragma once

#include <cstdint>

namespace bytebound {

template <typename T>
T load_relaxed(const void* p) {
  emulation::poll("a load of what another block writes");
  T value;
  __atomic_load(static_cast<const T*>(p), &value, __ATOMIC_SEQ_CST);
  return value;
}

// x86 has no atomic load of 16 bytes that all its processors know: two of eight, so a reader has to
// look at all of the four words.
inline uint4 load_relaxed_16(const void* p) {
  const auto* p_words = static_cast<const std::uint64_t*>(p);
  const auto low = load_relaxed<std::uint64_t>(p_words);
  const auto high = load_relaxed<std::uint64_t>(p_words + 1);
  return make_uint4(static_cast<unsigned>(low), static_cast<unsigned>(low >> 32),
                    static_cast<unsigned>(high), static_cast<unsigned>(high >> 32));
}
inline unsigned long long load_relaxed_8(const void* p) {
  return load_relaxed<unsigned long long>(p);
}
inline uint32_t load_relaxed_4(const void* p) {
  return load_relaxed<uint32_t>(p);
}
inline uint16_t load_relaxed_2(const void* p) {
  return load_relaxed<uint16_t>(p);
}

template <typename T>
void store_bits(void* p, T bits) {
  __atomic_store_n(static_cast<T*>(p), bits, __ATOMIC_SEQ_CST);
  emulation::t_block->note_event();
}

inline void store_relaxed(float* p, float value) {
  store_bits(p, __float_as_uint(value));
}
inline void store_relaxed(__half* p, __half value) {
  store_bits(p, __half_as_ushort(value));
}
inline void store_relaxed(float2* p, float2 value) {
  store_bits(p, emulation::bits_as<std::uint64_t>(value));
}
inline void store_relaxed_4(void* p, uint32_t value) {
  store_bits(p, value);
}
inline void store_relaxed_8(void* p, unsigned long long value) {
  store_bits(p, value);
}

inline void store_relaxed_16(void* p, const uint4& v) {
  store_bits(static_cast<std::uint64_t*>(p), static_cast<std::uint64_t>(v.y) << 32 | v.x);
  store_bits(static_cast<std::uint64_t*>(p) + 1, static_cast<std::uint64_t>(v.w) << 32 | v.z);
}

inline int load_acquire(const int* p) {
  return load_relaxed<int>(p);
}
inline void store_release_zero(int* p) {
  store_bits(p, 0);
}
inline void add_release(int* p, int value) {
  __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
  emulation::t_block->note_event();
}

}  // namespace bytebound
