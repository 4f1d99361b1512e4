// What the files of this folder share. Each op has one file with one bind function, declared here.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace bytebound {

// A pointer as Python hands it over; 0 is a null pointer.
using Address = std::uintptr_t;

template <typename T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

inline void* stream_of(Address stream) {
  return reinterpret_cast<void*>(stream);
}

// The GIL is released while a launcher runs.
using Unlocked = pybind11::call_guard<pybind11::gil_scoped_release>;

void bind_argmax(pybind11::module_& m);
void bind_attention_decode(pybind11::module_& m);
void bind_dense_matvec(pybind11::module_& m);
void bind_embedding_gather(pybind11::module_& m);
void bind_gdn_keep(pybind11::module_& m);
void bind_gdn_step(pybind11::module_& m);
void bind_history_append(pybind11::module_& m);
void bind_l2_persist(pybind11::module_& m);
void bind_logit_adjust(pybind11::module_& m);
void bind_logprobs(pybind11::module_& m);
void bind_read_bandwidth(pybind11::module_& m);
void bind_rms_norm(pybind11::module_& m);
void bind_rms_norm_project(pybind11::module_& m);
void bind_sample(pybind11::module_& m);
void bind_speculative_accept(pybind11::module_& m);
void bind_speculative_sample(pybind11::module_& m);
void bind_w4_matmul(pybind11::module_& m);
void bind_w4_matvec(pybind11::module_& m);
void bind_w4_pack(pybind11::module_& m);
void bind_w4_unpack(pybind11::module_& m);
void bind_weight_stream(pybind11::module_& m);

}  // namespace bytebound
