// The four-bit weights of a warp, through a ring of its own in shared memory.
//
// A warp knows all items it will ever multiply, product after product: it asks for them in that
// order and far ahead, whatever results it may be waiting for meanwhile. A slot is asked for again as
// soon as its item has been used. No other warp is involved.
#pragma once

#include "barrier.cuh"
#include "stream_program.cuh"
#include "w4.cuh"

namespace bytebound {

constexpr int kMostSlots = 8;  // of a warp

// An item in shared memory, as a lane reads it.
struct SlotItem {
  const unsigned char* p_slot;
  int i_lane;

  __device__ __forceinline__ uint4 words(int i) const {
    return *reinterpret_cast<const uint4*>(p_slot + i * 512 + i_lane * 16);
  }
  __device__ __forceinline__ uint32_t scales(int i_tile) const {
    return *reinterpret_cast<const uint32_t*>(p_slot + kWordBytes + i_lane / 4 * 16 + i_tile * 4);
  }
  __device__ __forceinline__ uint32_t zeros() const {
    return *reinterpret_cast<const uint32_t*>(p_slot + kWordBytes + kScaleBytes + i_lane / 4 * 4);
  }
};

// What a warp asks for next; lane 0 alone reads and writes it, in shared memory.
struct RingCursor {
  const unsigned char* p_next;
  int num_left;  // of the current product
  int i_op;
};

// Where a warp's ring lies.
struct RingPlace {
  unsigned char* p_slots;
  std::uint64_t* p_full;  // [kMostSlots]
  RingCursor* p_cursor;
  int i_warp;  // within the grid
  int i_lane;
};

template <bool kAsymmetric>
class WeightRing {
 public:
  static constexpr int kItemBytes = item_bytes(kAsymmetric);
  static constexpr int kSlotBytes = (kItemBytes + 127) / 128 * 128;

  __device__ __forceinline__ void open(const StreamProgram& program, const RingPlace& place) {
    slot_ = 0;
    parity_ = 0;
    if (place.i_lane == 0) {
#pragma unroll 1
      for (int i = 0; i < program.num_slots; ++i) {
        open_barrier(place.p_full + i, 1);
      }
      publish_barriers();
      *place.p_cursor = {nullptr, 0, -1};
#pragma unroll 1
      for (int i = 0; i < program.num_slots; ++i) {
        request(program, place, i);
      }
    }
    __syncwarp();
  }

  // The next item, when it has arrived; good until release().
  __device__ __forceinline__ SlotItem take(const RingPlace& place) const {
    wait_for_phase(place.p_full + slot_, parity_);
    return {place.p_slots + slot_ * kSlotBytes, place.i_lane};
  }

  __device__ __forceinline__ void release(const StreamProgram& program, const RingPlace& place) {
    __syncwarp();
    if (place.i_lane == 0) {
      request(program, place, slot_);
    }
    if (++slot_ == program.num_slots) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  static __device__ __forceinline__ void request(const StreamProgram& program,
                                                 const RingPlace& place,
                                                 int slot) {
    RingCursor cursor = *place.p_cursor;
#pragma unroll 1
    while (cursor.num_left == 0) {
      if (++cursor.i_op >= program.num_ops) {
        return;  // for good: every item has been asked for
      }
      const StreamTask& op = program.ops[cursor.i_op];
      if (op.kind == StreamKind::kProduct) {
        const int start = op.product.shares.start(place.i_warp);
        cursor.num_left = op.product.shares.start(place.i_warp + 1) - start;
        cursor.p_next = op.product.p_weight + static_cast<std::int64_t>(start) * kItemBytes;
      }
    }
    copy_bulk(place.p_slots + slot * kSlotBytes, cursor.p_next, kItemBytes, place.p_full + slot,
              read_once_policy());
    cursor.p_next += kItemBytes;
    --cursor.num_left;
    *place.p_cursor = cursor;
  }

  int slot_;
  unsigned parity_;
};

}  // namespace bytebound
