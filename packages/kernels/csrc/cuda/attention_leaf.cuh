// The fixed split of the positions of a context into leaves, and the merge of what leaves yield.
//
//   positions     0 .. 2 Ki   .. 8 Ki   .. 32 Ki   .. 128 Ki   .. 512 Ki
//   leaf size         64         128        256          512         1024
//
// A leaf's borders depend on absolute positions alone, never on the length or the number of rows,
// so a row's sums have one order. Short contexts get many small leaves (parallel work at once),
// long ones few large leaves (few partial results); the size grows with the square root of the
// position.
#pragma once

#ifdef __CUDACC__
#define BYTEBOUND_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define BYTEBOUND_HOST_DEVICE inline
#endif

namespace bytebound {

constexpr int kSmallestLeaf = 64;      // positions
constexpr int kFirstLeavesEnd = 2048;  // where the smallest leaves end
constexpr int kMaxPositions = 1 << 20;

struct Leaf {
  int index;  // 0 for the leaf that holds position 0
  int start;  // its first position
  int size;   // in positions
};

// Leaves of 64 << i_size positions: how many there are, and what comes before them.
BYTEBOUND_HOST_DEVICE int leaves_of_size(int i_size) {
  return i_size == 0 ? kFirstLeavesEnd / kSmallestLeaf
                     : 3 * kFirstLeavesEnd / (4 * kSmallestLeaf) << i_size;
}

BYTEBOUND_HOST_DEVICE Leaf leaf_of_position(int position) {
  int index = 0, start = 0, end = kFirstLeavesEnd, i_size = 0;
  while (position >= end) {
    index += leaves_of_size(i_size);
    start = end;
    end *= 4;
    ++i_size;
  }
  const int size = kSmallestLeaf << i_size;
  const int i = (position - start) >> i_size;  // in units of the smallest leaf
  return {index + i / kSmallestLeaf, start + (i / kSmallestLeaf) * size, size};
}

BYTEBOUND_HOST_DEVICE Leaf leaf_of_index(int index) {
  int first = 0, start = 0, end = kFirstLeavesEnd, i_size = 0;
  while (index >= first + leaves_of_size(i_size)) {
    first += leaves_of_size(i_size);
    start = end;
    end *= 4;
    ++i_size;
  }
  const int size = kSmallestLeaf << i_size;
  return {index, start + (index - first) * size, size};
}

BYTEBOUND_HOST_DEVICE int num_leaves(int positions) {
  return leaf_of_position(positions - 1).index + 1;
}

#ifdef __CUDACC__

// The leaves of one of several blocks that divide a context, in ascending order. Leaves are dealt
// from the large ones at the end to the small ones at the start, each to a block that has the
// fewest positions so far, so that a block has hardly more than its part. Lies in shared memory.
struct LeafShare {
  static constexpr int kRounds = 16;     // with more leaves for each block, whole rounds are dealt
  static constexpr int kMaxLeaves = 64;  // of a block otherwise

  int num_positions;
  int num_leaves;
  int i_block;
  int num_blocks;
  int dealt[kMaxLeaves];  // descending

  __device__ __forceinline__ int leaf(int i) const {
    const int i_dealt = num_leaves - 1 - i;
    const int count = bytebound::num_leaves(num_positions);
    return count > kRounds * num_blocks ? count - 1 - (i_dealt * num_blocks + i_block)
                                        : dealt[i_dealt];
  }

  // All lanes of one warp call it. Blocks with the same number of positions are a group of adjacent
  // ones, and lane j has group j: each leaf size splits one group at most, and there are six sizes.
  __device__ __forceinline__ void set(int positions, int block, int blocks) {
    const int i_lane = static_cast<int>(threadIdx.x) % 32;
    const int count = positions > 0 ? bytebound::num_leaves(positions) : 0;
    int i_dealt = 0;
    const auto deal = [&](int i_leaf) {
      if (i_lane == 0) {
        dealt[i_dealt] = i_leaf;
      }
      ++i_dealt;
    };
    if (count > kRounds * blocks) {
      i_dealt = (count - block + blocks - 1) / blocks;
    } else if (count > 0) {
      constexpr unsigned kAll = 0xffffffffu;
      constexpr int kNone = 0x7fffffff;
      int first_block = 0, size = blocks, load = i_lane == 0 ? 0 : kNone;
      int num_groups = 1;
      int next = count;  // leaves below this one are still to be dealt
      int first_leaf = 0, i_size = 0;
      while (count > first_leaf + leaves_of_size(i_size)) {
        first_leaf += leaves_of_size(i_size++);
      }
      // From here on first_leaf and i_size are those of the leaves that are dealt.
      while (true) {
        int left = next - first_leaf;
        for (; left >= blocks; left -= blocks, next -= blocks) {
          deal(next - 1 - block);
          load += load == kNone ? 0 : kSmallestLeaf << i_size;
        }
        while (left > 0) {
          const int low = __reduce_min_sync(kAll, load);
          const int i_low = __ffs(__ballot_sync(kAll, load == low)) - 1;
          const int low_first = __shfl_sync(kAll, first_block, i_low);
          const int low_size = __shfl_sync(kAll, size, i_low);
          const int num_dealt = left < low_size ? left : low_size;
          if (block >= low_first && block < low_first + num_dealt) {
            deal(next - 1 - (block - low_first));
          }
          if (i_lane == i_low) {
            size = num_dealt;
            load = low + (kSmallestLeaf << i_size);
          } else if (i_lane == num_groups && num_dealt < low_size) {
            first_block = low_first + num_dealt;
            size = low_size - num_dealt;
            load = low;
          }
          num_groups += num_dealt < low_size ? 1 : 0;
          left -= num_dealt;
          next -= num_dealt;
        }
        if (i_size == 0) {
          break;
        }
        first_leaf -= leaves_of_size(--i_size);
      }
    }
    if (i_lane == 0) {
      num_positions = positions;
      num_leaves = i_dealt;
      i_block = block;
      num_blocks = blocks;
    }
  }
};

#endif

}  // namespace bytebound

#undef BYTEBOUND_HOST_DEVICE
