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

BYTEBOUND_HOST_DEVICE Leaf leaf_of_position(int position) {
  int index = 0, start = 0, end = kFirstLeavesEnd, size = kSmallestLeaf;
  while (position >= end) {
    index += (end - start) / size;
    start = end;
    end *= 4;
    size *= 2;
  }
  const int i = (position - start) / size;
  return {index + i, start + i * size, size};
}

BYTEBOUND_HOST_DEVICE Leaf leaf_of_index(int index) {
  int first = 0, start = 0, end = kFirstLeavesEnd, size = kSmallestLeaf;
  while (index >= first + (end - start) / size) {
    first += (end - start) / size;
    start = end;
    end *= 4;
    size *= 2;
  }
  return {index, start + (index - first) * size, size};
}

BYTEBOUND_HOST_DEVICE int num_leaves(int positions) {
  return leaf_of_position(positions - 1).index + 1;
}

// The leaves of one of several blocks that divide a context, in ascending order. Leaves are dealt
// from the large ones at the end to the small ones at the start, each to a block that has the
// fewest positions so far, so that a block has hardly more than its part.
struct LeafShare {
  static constexpr int kRounds = 16;     // with more leaves for each block, whole rounds are dealt
  static constexpr int kMaxLeaves = 64;  // of a block otherwise
  static constexpr int kMaxGroups = 8;   // of blocks with the same number of positions

  int num_positions;
  int num_leaves;
  int i_block;
  int num_blocks;
  int dealt[kMaxLeaves];  // descending

  BYTEBOUND_HOST_DEVICE int leaf(int i) const {
    const int i_dealt = num_leaves - 1 - i;
    const int count = bytebound::num_leaves(num_positions);
    return count > kRounds * num_blocks ? count - 1 - (i_dealt * num_blocks + i_block)
                                        : dealt[i_dealt];
  }

  BYTEBOUND_HOST_DEVICE void set(int positions, int block, int blocks) {
    num_positions = positions;
    num_leaves = 0;
    i_block = block;
    num_blocks = blocks;
    const int count = positions > 0 ? bytebound::num_leaves(positions) : 0;
    if (count > kRounds * blocks) {
      num_leaves = (count - block + blocks - 1) / blocks;
      return;
    }
    // A group of adjacent blocks has the same number of positions. Each leaf size splits one group
    // at most, and there are six sizes. Constant indices keep the groups in registers.
    int first_block[kMaxGroups] = {}, size[kMaxGroups] = {}, load[kMaxGroups];
#pragma unroll
    for (int j = 0; j < kMaxGroups; ++j) {
      load[j] = j == 0 ? 0 : 0x7fffffff;
    }
    size[0] = blocks;
    int num_groups = 1;
    int next = count;  // leaves below this one are still to be dealt
    while (next > 0) {
      const Leaf last = leaf_of_index(next - 1);
      // What is left of its size: the first leaf of a size starts at a quarter of its end.
      const int size_start =
          last.size == kSmallestLeaf
              ? 0
              : last.size / kSmallestLeaf * (last.size / kSmallestLeaf) / 4 * kFirstLeavesEnd;
      int left = (last.start - size_start) / last.size + 1;
      for (; left >= blocks; left -= blocks, next -= blocks) {
        dealt[num_leaves++] = next - 1 - block;
      }
      while (left > 0) {
        int i_low = 0, low = load[0], low_first = first_block[0], low_size = size[0];
#pragma unroll
        for (int j = 1; j < kMaxGroups; ++j) {
          if (load[j] < low) {
            i_low = j;
            low = load[j];
            low_first = first_block[j];
            low_size = size[j];
          }
        }
        const int num_dealt = left < low_size ? left : low_size;
        if (block >= low_first && block < low_first + num_dealt) {
          dealt[num_leaves++] = next - 1 - (block - low_first);
        }
#pragma unroll
        for (int j = 0; j < kMaxGroups; ++j) {
          if (j == i_low) {
            size[j] = num_dealt;
            load[j] = low + last.size;
          } else if (j == num_groups && num_dealt < low_size) {
            first_block[j] = low_first + num_dealt;
            size[j] = low_size - num_dealt;
            load[j] = low;
          }
        }
        num_groups += num_dealt < low_size ? 1 : 0;
        left -= num_dealt;
        next -= num_dealt;
      }
    }
  }
};

}  // namespace bytebound

#undef BYTEBOUND_HOST_DEVICE
