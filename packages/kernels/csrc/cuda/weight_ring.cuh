// The four-bit weights of a warp, through a ring of its own in shared memory.
//
// A warp knows all items it will ever multiply, product after product: it asks for them in that
// order and far ahead, whatever results it may be waiting for meanwhile. A slot is asked for again
// as soon as its item has been used. No other warp is involved.
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

// How far a warp's ring is. In shared memory, since registers are scarce; lane 0 alone writes it.
struct RingCursor {
  WeightsTask next;             // of the product behind the one that is asked for
  const unsigned char* p_next;  // what is asked for next
  int num_left;                 // of its product
  int i_product;
  unsigned slot;  // of the item that is taken next
  unsigned parity;
  int i_op;  // that the warp is at
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

  static __device__ __forceinline__ void open(const StreamProgram& program,
                                              const RingPlace& place) {
    if (place.i_lane == 0) {
#pragma unroll 1
      for (int i = 0; i < program.num_slots; ++i) {
        open_barrier(place.p_full + i, 1);
      }
      publish_barriers();
      *place.p_cursor = {{}, nullptr, 0, -1, 0, 0, 0};
      begin_copy_next(program, place);
#pragma unroll 1
      for (int i = 0; i < program.num_slots; ++i) {
        request(program, place, i);
      }
    }
    __syncwarp();
  }

  // The next item, when it has arrived; good until release().
  static __device__ __forceinline__ SlotItem take(const RingPlace& place) {
    const unsigned slot = place.p_cursor->slot;
    wait_for_phase(place.p_full + slot, place.p_cursor->parity);
    return {place.p_slots + slot * kSlotBytes, place.i_lane};
  }

  static __device__ __forceinline__ void release(const StreamProgram& program,
                                                 const RingPlace& place) {
    __syncwarp();
    if (place.i_lane == 0) {
      RingCursor& cursor = *place.p_cursor;
      request(program, place, cursor.slot);
      if (++cursor.slot == static_cast<unsigned>(program.num_slots)) {
        cursor.slot = 0;
        cursor.parity ^= 1;
      }
    }
    __syncwarp();
  }

 private:
  static __device__ __forceinline__ void request(const StreamProgram& program,
                                                 const RingPlace& place,
                                                 int slot) {
    RingCursor& cursor = *place.p_cursor;
    const unsigned char* p_next = cursor.p_next;
    int num_left = cursor.num_left;
#pragma unroll 1
    while (num_left == 0) {
      if (cursor.i_product + 1 >= program.num_products) {
        return;  // for good: every item has been asked for
      }
      ++cursor.i_product;
      async_copy_wait();  // begun a product ago
      const Shares& shares = cursor.next.shares;
      const int start = shares.start(place.i_warp);
      num_left = shares.start(place.i_warp + 1) - start;
      p_next = cursor.next.p_weight + static_cast<std::int64_t>(start) * kItemBytes;
      begin_copy_next(program, place);
    }
    copy_bulk(place.p_slots + slot * kSlotBytes, p_next, kItemBytes, place.p_full + slot,
              read_once_policy());
    cursor.p_next = p_next + kItemBytes;
    cursor.num_left = num_left - 1;
  }

  static __device__ __forceinline__ void begin_copy_next(const StreamProgram& program,
                                                         const RingPlace& place) {
    RingCursor& cursor = *place.p_cursor;
    if (cursor.i_product + 1 < program.num_products) {
      const auto* p_from =
          reinterpret_cast<const unsigned char*>(program.p_weights + cursor.i_product + 1);
#pragma unroll
      for (unsigned i = 0; i < sizeof(WeightsTask); i += 16) {
        async_copy_16(shared_address(&cursor.next) + i, p_from + i);
      }
    }
  }
};

}  // namespace bytebound
