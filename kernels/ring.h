//===- ring.h - A warp's ring of K and V tiles in shared memory -----------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// Every warp copies its own tiles with cp.async; nothing in the main loop waits
// for another warp. A copy instruction moves 16 bytes a lane: lanesPerRow lanes
// take one row (a token of one KV head), so a warp takes whole 32-byte sectors,
// and whole rows where rows are contiguous.
//
// Rows of a lane: consecutive ones, so that a lane stays inside one page (a
// tile may cover two). Only head dim 64 with tiles of 16 interleaves rows by 8:
// there two rows share a shared-memory phase and must be 4 rows apart.
//
// Addresses: LDGSTS takes offsets of -2048..2047. A lane's rows are reached
// from pointers biased by 2 KiB, one for every 4 KiB of rows. Up to four
// pointers are kept in registers and cost one multiply-add a tile each; with
// larger token strides every row has its address computed.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_RING_H
#define KVCACHE_KERNELS_RING_H

#include "Geometry.h"
#include "ptx.h"
#include "tile.h"

namespace kvcache {
namespace kernels {

KVCACHE_DEVICE int lanesPerRow(const AttentionShape &shape) {
  return shape.headDim / 16;
}
KVCACHE_DEVICE int rowsPerLane(const AttentionShape &shape) {
  return shape.tile * lanesPerRow(shape) / 32;
}
KVCACHE_DEVICE bool interleavesRows(const AttentionShape &shape) {
  return rowsPerLane(shape) == 2 && shape.headDim == 64;
}
/// Rows from one of a lane's rows to the next.
KVCACHE_DEVICE int rowStep(const AttentionShape &shape) {
  return interleavesRows(shape) ? 8 : 1;
}
/// First row of a lane within a tile.
KVCACHE_DEVICE int firstRow(const AttentionShape &shape, u32 lane) {
  u32 r = lane / lanesPerRow(shape);
  return interleavesRows(shape) ? (r >> 1) + 4 * (r & 1)
                                : r * rowsPerLane(shape);
}

constexpr int windowBytes = 4096, maxWindows = 4;

/// 4 KiB windows that a lane's rows reach over.
KVCACHE_DEVICE int windows(const AttentionShape &shape, int tokenStride) {
  return (rowsPerLane(shape) - 1) * rowStep(shape) * tokenStride / windowBytes +
         1;
}

/// Where a lane copies from (before the page is added) and to (in a stage).
struct Source {
  const u8 *k[maxWindows];
  const u8 *v[maxWindows];
  u32 shared;
};

KVCACHE_DEVICE void setWindows(const u8 *(&p)[maxWindows], const u8 *base,
                               int count) {
  if (count > maxWindows) {
    p[0] = base;
    ptx::opaque(p[0]);
    return;
  }
#pragma unroll
  for (int w = 0; w < count; ++w) {
    p[w] = base + windowBytes / 2 + w * windowBytes;
    ptx::opaque(p[w]);
  }
}

/// `kHead`, `vHead`: pages at the KV head of this CTA. `token`: the lane's
/// first token, counted from the first page of the split.
KVCACHE_DEVICE Source makeSource(const AttentionShape &shape, const u8 *kHead,
                                 const u8 *vHead, int token, u32 lane) {
  Source s;
  u32 chunk = lane % lanesPerRow(shape);
  int inPage = token % shape.pageSize;
  setWindows(s.k,
             kHead + static_cast<i64>(inPage) * shape.kTokenStride + chunk * 16,
             windows(shape, shape.kTokenStride));
  setWindows(s.v,
             vHead + static_cast<i64>(inPage) * shape.vTokenStride + chunk * 16,
             windows(shape, shape.vTokenStride));
  s.shared = firstRow(shape, lane) * rowPitch(shape.headDim) + chunk * 16;
  return s;
}

/// One lane's rows of K or of V.
KVCACHE_DEVICE void copyRows(const AttentionShape &shape, u32 shared,
                             const u8 *const (&source)[maxWindows],
                             u64 pageOffset, int tokenStride) {
  const int count = windows(shape, tokenStride), rows = rowsPerLane(shape);
  const int step = rowStep(shape);
  const u8 *p[maxWindows];
#pragma unroll
  for (int w = 0; w < (count > maxWindows ? 1 : count); ++w) {
    p[w] = source[w] + pageOffset;
    ptx::opaque(p[w]);
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    i64 offset = static_cast<i64>(i) * step * tokenStride;
    u32 to = shared + i * step * rowPitch(shape.headDim);
    if (count > maxWindows) {
      ptx::copyAsync16(to, p[0] + offset);
    } else {
      int w = static_cast<int>(offset / windowBytes);
      ptx::copyAsync16(to, p[w] + (offset - w * windowBytes - windowBytes / 2));
    }
  }
}

/// Requests one tile of K and V into a stage.
KVCACHE_DEVICE void copyTile(const AttentionShape &shape, const Source &source,
                             u32 stage, int page) {
  u64 id = static_cast<u32>(page);
  u32 to = stage + source.shared;
  copyRows(shape, to, source.k, id * static_cast<u64>(shape.kPageStride),
           shape.kTokenStride);
  copyRows(shape, to + shape.tile * rowPitch(shape.headDim), source.v,
           id * static_cast<u64>(shape.vPageStride), shape.vTokenStride);
}

/// Page of entry i. Where a tile covers two pages, the last one may lack the
/// second: those lanes copy the last page again, and their rows are masked.
KVCACHE_DEVICE int loadPage(const AttentionShape &shape, const int *entries,
                            int i, int last) {
  return ptx::loadI32(entries,
                      shape.tile > shape.pageSize && i > last ? last : i);
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_RING_H
