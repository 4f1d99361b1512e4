// A thread takes two neighbouring channels of one layer, or four updates: nobody else touches them.
#include "gdn_keep.h"

#include "cuda/dependent.cuh"
#include "cuda/device_guard.h"
#include "cuda/launch.h"

namespace bytebound {
namespace {

constexpr int kThreads = 256;
constexpr int kKeepWindow = 3;
constexpr int kKeepRows = 8;

__global__ void __launch_bounds__(kThreads) gdn_keep_kernel(const GdnKeepParams p) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const std::int64_t i_layer = blockIdx.y;
  const int num_rows = static_cast<int>(p.rows);
  const int i_pair = blockIdx.x * kThreads + threadIdx.x;
  const int num_pairs = static_cast<int>(p.channels / 2);
  if (i_pair >= num_pairs) {
    const int i_first = 4 * (i_pair - num_pairs);
    if (i_first < p.width) {
      const float* p_from = p.updates + i_layer * p.updates_layer_stride + i_first;
      float* p_to = p.pending_updates + i_layer * p.pending_updates_layer_stride + i_first;
      for (int i = 0; i < num_rows; ++i) {
        *reinterpret_cast<float4*>(p_to + i * p.pending_updates_row_stride) =
            *reinterpret_cast<const float4*>(p_from + i * p.updates_row_stride);
      }
    }
    return;
  }
  const int channel = 2 * i_pair;
  auto* p_pending =
      static_cast<std::uint16_t*>(p.pending_qkv) + i_layer * p.pending_layer_stride + channel;
  const auto* p_current =
      static_cast<const std::uint16_t*>(p.projected) + i_layer * p.projected_layer_stride + channel;
  const int num_accepted = min(max(*p.num_accepted, 0), kKeepRows);
  if (num_accepted > 0) {
    // Input j of the new window is number j + num_accepted of (window, pending rows).
    auto* p_window =
        static_cast<std::uint16_t*>(p.windows) + (i_layer * p.channels + channel) * kKeepWindow;
    std::uint16_t b_window[2][kKeepWindow];
#pragma unroll
    for (int j = 0; j < kKeepWindow; ++j) {
      const int i_input = j + num_accepted;
      if (i_input < kKeepWindow) {
        b_window[0][j] = p_window[i_input];
        b_window[1][j] = p_window[kKeepWindow + i_input];
      } else {
        const std::uint32_t both = *reinterpret_cast<const std::uint32_t*>(
            p_pending + (i_input - kKeepWindow) * p.pending_row_stride);
        b_window[0][j] = static_cast<std::uint16_t>(both);
        b_window[1][j] = static_cast<std::uint16_t>(both >> 16);
      }
    }
#pragma unroll
    for (int j = 0; j < kKeepWindow; ++j) {
      p_window[j] = b_window[0][j];
      p_window[kKeepWindow + j] = b_window[1][j];
    }
  }
  for (int i = 0; i < num_rows; ++i) {
    *reinterpret_cast<std::uint32_t*>(p_pending + i * p.pending_row_stride) =
        *reinterpret_cast<const std::uint32_t*>(p_current + i * p.projected_row_stride);
  }
}

}  // namespace

Status gdn_keep(const GdnKeepParams& params, void* stream) {
  if (params.layers < 1 || params.layers > 65535 || params.channels < 2 ||
      params.channels % 2 != 0 || params.width < 4 || params.width % 4 != 0 || params.rows < 1 ||
      params.rows > kKeepRows) {
    return kSizeOutOfRange;
  }
  const DeviceGuard guard(params.device);
  if (guard.status() != cudaSuccess) {
    return guard.status();
  }
  const std::int64_t threads = params.channels / 2 + params.width / 4;
  LaunchOptions options;
  options.overlap_previous = true;
  return launch_with(options, gdn_keep_kernel,
                     dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                          static_cast<unsigned>(params.layers)),
                     dim3(kThreads), stream, params);
}

}  // namespace bytebound
