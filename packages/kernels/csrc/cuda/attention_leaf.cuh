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

}  // namespace bytebound

#undef BYTEBOUND_HOST_DEVICE
