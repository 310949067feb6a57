//===- ring.h - A warp's ring of K and V tiles in shared memory -----------===//
//
// Part of the kvcache project.
//
//===----------------------------------------------------------------------===//
//
// Every warp copies its own tiles with cp.async; nothing in the main loop waits
// for another warp. A copy instruction moves a unit of 16 bytes a lane, or of 4
// where rows end in their scale and are not padded.
//
// Panels: a row (a token of one KV head) of 2^n units is taken by 2^n
// neighbouring lanes, so a warp takes whole sectors, and whole rows where rows
// are contiguous. Other rows are cut into panels of 2^n units, 32 at most, by
// the bits of their length, widest first: 80 bytes are panels of 64 and 16.
// Rows of K and V of one length share their panels, and so the pages that a
// lane looks up; where V has a length of its own, its panels follow those of K.
// Scales of tokens are a last panel of one unit of 4 bytes, wherever they are;
// they land behind the rows of a stage.
//
// Rows of a lane: consecutive ones, so that a lane stays inside one page (a
// tile may cover several). Rows whose lanes share a shared-memory phase (8
// lanes) must be as many rows apart as the panel has units, by the odd pitch;
// where they are not, in tiles of 16, the rows are dealt out differently.
//
// Addresses: LDGSTS takes offsets of -2048..2047. A lane's rows are reached
// from pointers biased by 2 KiB, one for every 4 KiB of rows. Up to four
// pointers are kept in registers and cost one multiply-add a tile each; with
// larger token strides every row has its address computed.
//
// Small pages cut a lane's rows into segments, each with a page of its own.
// Pages longer than the four tiles of an iteration are walked as virtual pages
// of that length, so that a lane's offset in its page never changes.
//
//===----------------------------------------------------------------------===//

#ifndef KVCACHE_KERNELS_RING_H
#define KVCACHE_KERNELS_RING_H

#include "Geometry.h"
#include "ptx.h"
#include "tile.h"

namespace kvcache {
namespace kernels {

constexpr int windowBytes = 4096, maxWindows = 4, maxPanels = 7;
constexpr int maxSegments = 32;

/// Bytes of a unit of the rows: see copyWidth.
KVCACHE_DEVICE int unitBytes(const AttentionShape &shape) {
  const i64 bits = shape.kPageStride | shape.kTokenStride | shape.kHeadStride |
                   shape.vPageStride | shape.vTokenStride | shape.vHeadStride;
  return shape.runtimeStrides ? 16 : copyWidth(bits, 0, 0);
}
KVCACHE_DEVICE int rowUnits(const AttentionShape &shape, bool isV) {
  return (isV ? shape.vHeadDim : shape.headDim) * cacheBytes(shape.cacheType) /
         unitBytes(shape);
}
KVCACHE_DEVICE int rowPanels(const AttentionShape &shape, bool isV) {
  const int units = rowUnits(shape, isV);
  return units / 32 + __builtin_popcount(units % 32);
}
KVCACHE_DEVICE bool sharesPanels(const AttentionShape &shape) {
  return shape.headDim == shape.vHeadDim;
}
/// The panels of rows of K, then those of V alone, then that of scales.
KVCACHE_DEVICE bool holdsScales(const AttentionShape &shape, int p) {
  return p == rowPanels(shape, false) +
                  (sharesPanels(shape) ? 0 : rowPanels(shape, true));
}
KVCACHE_DEVICE bool isOfV(const AttentionShape &shape, int p) {
  return p >= rowPanels(shape, false) && !holdsScales(shape, p);
}
KVCACHE_DEVICE int panels(const AttentionShape &shape) {
  return rowPanels(shape, false) +
         (sharesPanels(shape) ? 0 : rowPanels(shape, true)) +
         (hasTokenScales(shape) ? 1 : 0);
}
/// Whether a panel has rows of K, and of V.
KVCACHE_DEVICE bool holdsK(const AttentionShape &shape, int p) {
  return !isOfV(shape, p);
}
KVCACHE_DEVICE bool holdsV(const AttentionShape &shape, int p) {
  return sharesPanels(shape) || p >= rowPanels(shape, false);
}
/// Number of panel `p` among those of its row.
KVCACHE_DEVICE int inRow(const AttentionShape &shape, int p) {
  return isOfV(shape, p) ? p - rowPanels(shape, false) : p;
}
KVCACHE_DEVICE int highestBit(int x) {
  return x > 0 ? 1 << (31 - __builtin_clz(static_cast<u32>(x))) : 0;
}
/// Units of panel `p`, widest first. The library is compiled without knowing
/// the row, and this is asked for often: no loop over its bits.
KVCACHE_DEVICE int panelWidth(const AttentionShape &shape, int p) {
  if (holdsScales(shape, p))
    return 1;
  const int units = rowUnits(shape, isOfV(shape, p));
  const int narrow = inRow(shape, p) - units / 32;
  int rest = units % 32;
  rest -= narrow > 0 ? highestBit(rest) : 0;
  rest -= narrow > 1 ? highestBit(rest) : 0;
  return narrow < 0 ? 32 : highestBit(rest);
}
/// First unit of panel `p` of a row: the wider ones lie before it.
KVCACHE_DEVICE int panelStart(const AttentionShape &shape, int p) {
  const int units = rowUnits(shape, isOfV(shape, p));
  return inRow(shape, p) < units / 32 ? 32 * inRow(shape, p)
                                      : units & ~(2 * panelWidth(shape, p) - 1);
}
/// Strides of the panel's rows of K or of V in memory.
KVCACHE_DEVICE i64 pageStrideOf(const AttentionShape &shape, int p, bool isV) {
  if (holdsScales(shape, p) && shape.tokenScales == SideTokenScales)
    return static_cast<i64>(4) * shape.kvHeads * shape.pageSize;
  return isV ? shape.vPageStride : shape.kPageStride;
}
KVCACHE_DEVICE int tokenStrideOf(const AttentionShape &shape, int p, bool isV) {
  if (holdsScales(shape, p) && shape.tokenScales == SideTokenScales)
    return 4 * shape.kvHeads;
  return isV ? shape.vTokenStride : shape.kTokenStride;
}
KVCACHE_DEVICE int rowsPerLane(const AttentionShape &shape, int p) {
  return maxOf(1, shape.tile * panelWidth(shape, p) / 32);
}
/// Lanes 4 and 2 units wide of a tile of 16: consecutive rows would collide.
KVCACHE_DEVICE bool interleavesRows(const AttentionShape &shape, int p) {
  return shape.tile == 16 &&
         (panelWidth(shape, p) == 4 || panelWidth(shape, p) == 2);
}
/// Rows from one of a lane's rows to the next.
KVCACHE_DEVICE int rowStep(const AttentionShape &shape, int p) {
  return interleavesRows(shape, p) ? 8 : 1;
}
/// First row of a lane within a tile.
KVCACHE_DEVICE int firstRow(const AttentionShape &shape, int p, u32 lane) {
  const int width = panelWidth(shape, p);
  u32 r = lane / width;
  if (!interleavesRows(shape, p))
    return r * rowsPerLane(shape, p);
  return width == 4 ? (r >> 1) + 4 * (r & 1)
                    : 2 * (r & 3) + (r >> 2 & 1) + 8 * (r >> 3);
}

/// Tokens of a page as the ring walks it, and virtual pages in a page.
KVCACHE_DEVICE int virtualPage(const AttentionShape &shape) {
  return minOf(shape.pageSize, warpsPerCta * shape.tile);
}
KVCACHE_DEVICE int virtualPages(const AttentionShape &shape) {
  return shape.pageSize / virtualPage(shape);
}
/// Rows of a lane that are in one page, whatever the tile.
KVCACHE_DEVICE int segmentRows(const AttentionShape &shape, int p) {
  const int rows = rowsPerLane(shape, p), step = rowStep(shape, p);
  return step > 1 && shape.pageSize <= step ? 1
         : step > 1                         ? rows
                                            : minOf(rows, shape.pageSize);
}
KVCACHE_DEVICE int segments(const AttentionShape &shape, int p) {
  return rowsPerLane(shape, p) / segmentRows(shape, p);
}
/// Page-table entries from one segment to the next.
KVCACHE_DEVICE int segmentStep(const AttentionShape &shape, int p) {
  return maxOf(1, segmentRows(shape, p) * rowStep(shape, p) / shape.pageSize);
}

/// 4 KiB windows that a segment's rows reach over. Strides that are not
/// constants are as far apart as can be.
KVCACHE_DEVICE int windows(const AttentionShape &shape, int p, bool isV) {
  if (shape.runtimeStrides)
    return maxWindows + 1;
  return (segmentRows(shape, p) - 1) * rowStep(shape, p) *
             tokenStrideOf(shape, p, isV) / windowBytes +
         1;
}

/// Where a lane copies from (before the page is added) and to (in a stage),
/// and which page-table entries its rows have.
struct Panel {
  const u8 *k[maxWindows];
  const u8 *v[maxWindows];
  const int *entries; // of the lane's first row
  int low, high;      // entries that may be read, counted from `entries`
  int part;           // virtual page of the first row within its page
  u32 shared;
};
struct Source {
  Panel panel[maxPanels];
};

/// The pages of a lane's rows in one tile.
struct Pages {
  int id[maxPanels][maxSegments];
  int part[maxPanels];
};

/// A lane's windows. ptxas would see that the further ones are at constant
/// distances from the first, and derive them in each tile by 64-bit additions
/// of two instructions where a multiply-add from a register takes one; it does
/// not see through a shuffle.
KVCACHE_DEVICE void setWindows(const u8 *(&p)[maxWindows], const u8 *base,
                               int count, u32 lane) {
  if (count > maxWindows) {
    p[0] = base;
    ptx::opaque(p[0]);
    return;
  }
#pragma unroll
  for (int w = 0; w < count; ++w) {
    p[w] = base + windowBytes / 2 + w * windowBytes;
    if (w > 0)
      p[w] = ptx::shuffle(p[w], lane);
    ptx::opaque(p[w]);
  }
}

/// Pages of K and V, and of the scales of their tokens, at the KV head of a
/// CTA.
struct HeadPages {
  const u8 *k, *v, *kScales, *vScales;
};

/// `table`: the sequence's page-table row. `begin`: first token of the split, a
/// multiple of the tile. Entries of the tokens `firstKey` to `end - 1` may be
/// read.
KVCACHE_DEVICE Source makeSource(const AttentionShape &shape,
                                 const HeadPages &head, const int *table,
                                 int begin, int firstKey, int end, u32 warp,
                                 u32 lane) {
  Source s;
#pragma unroll
  for (int p = 0; p < panels(shape); ++p) {
    Panel &panel = s.panel[p];
    const u32 width = panelWidth(shape, p);
    // Lanes that a narrow panel of a short tile has no rows for take the pages
    // of those that have.
    const u32 lanes = shape.tile * width;
    const u32 row = firstRow(shape, p, lanes < 32 ? lane % lanes : lane);
    const bool scales = holdsScales(shape, p);
    u32 byte = scales ? 0
                      : (lane % width + panelStart(shape, p)) *
                            static_cast<u32>(unitBytes(shape));
    int token = warp * shape.tile + row;
    // Splits begin at a page, but for those of a window.
    int at = shape.hasWindow ? begin + token : token;
    int inPage = at % virtualPage(shape);
    if (holdsK(shape, p))
      setWindows(panel.k,
                 (scales ? head.kScales : head.k) +
                     static_cast<i64>(inPage) * tokenStrideOf(shape, p, false) +
                     byte,
                 windows(shape, p, false), lane);
    if (holdsV(shape, p))
      setWindows(panel.v,
                 (scales ? head.vScales : head.v) +
                     static_cast<i64>(inPage) * tokenStrideOf(shape, p, true) +
                     byte,
                 windows(shape, p, true), lane);
    const int first = shape.hasWindow
                          ? at / shape.pageSize
                          : begin / shape.pageSize + at / shape.pageSize;
    panel.entries = table + first;
    ptx::opaque(panel.entries);
    panel.part = at % shape.pageSize / virtualPage(shape);
    panel.low = firstKey / shape.pageSize - first;
    panel.high = (end - 1) / shape.pageSize - first;
    panel.shared =
        scales ? shape.tile * (pitchOf(shape) + pitchOf(shape, true)) + row * 4
               : row * pitchOf(shape, isOfV(shape, p)) + byte;
  }
  return s;
}

/// One lane's rows of one panel of K or of V.
KVCACHE_DEVICE void copyRows(const AttentionShape &shape, int panel, u32 shared,
                             const u8 *const (&source)[maxWindows],
                             const int (&id)[maxSegments], int part, bool isV) {
  const i64 pageStride = pageStrideOf(shape, panel, isV);
  const int tokenStride = tokenStrideOf(shape, panel, isV);
  const int count = windows(shape, panel, isV);
  const bool narrow = holdsScales(shape, panel) || unitBytes(shape) == 4;
  const int rows = segmentRows(shape, panel), step = rowStep(shape, panel);
  const int pitch = pitchOf(shape, isOfV(shape, panel));
#pragma unroll
  for (int s = 0; s < segments(shape, panel); ++s) {
    u64 offset = static_cast<u64>(static_cast<u32>(id[s])) *
                 static_cast<u64>(pageStride);
    if (virtualPages(shape) > 1)
      offset += static_cast<u64>(static_cast<i64>(part * virtualPage(shape)) *
                                 tokenStride);
    const u8 *p[maxWindows];
#pragma unroll
    for (int w = 0; w < (count > maxWindows ? 1 : count); ++w) {
      p[w] = source[w] + offset;
      ptx::opaque(p[w]);
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      i64 at = static_cast<i64>(i) * step * tokenStride;
      u32 to = shared + (s * rows + i) * step * pitch;
      const u8 *from = p[0] + at;
      if (count <= maxWindows) {
        int w = static_cast<int>(at / windowBytes);
        from = p[w] + (at - w * windowBytes - windowBytes / 2);
      }
      if (narrow)
        ptx::copyAsync4(to, from);
      else
        ptx::copyAsync16(to, from);
    }
  }
}

/// Requests one tile of K and V into a stage.
KVCACHE_DEVICE void copyTile(const AttentionShape &shape, const Source &source,
                             u32 stage, const Pages &pages, u32 lane) {
#pragma unroll
  for (int p = 0; p < panels(shape); ++p) {
    const int toV = shape.tile * (holdsScales(shape, p) ? 4 : pitchOf(shape));
    const Panel &panel = source.panel[p];
    const int lanes = shape.tile * panelWidth(shape, p); // of 32 or more
    if (lanes < 32 && static_cast<int>(lane) >= lanes)
      continue;
    u32 to = stage + panel.shared;
    if (holdsK(shape, p))
      copyRows(shape, p, to, panel.k, pages.id[p], pages.part[p], false);
    if (holdsV(shape, p))
      copyRows(shape, p, to + toV, panel.v, pages.id[p], pages.part[p], true);
  }
}

/// Pages of a warp's tile number `i` of the split. A tile that covers several
/// pages may reach beyond the first and the last one of the row: those lanes
/// copy that page again, and their rows are masked. Only a warp's first tile
/// (`first`) may reach below.
KVCACHE_DEVICE void loadPages(const AttentionShape &shape, const Source &source,
                              int i, bool first, Pages &pages) {
  const bool clamps = shape.tile > shape.pageSize;
#pragma unroll
  for (int p = 0; p < panels(shape); ++p) {
    const Panel &panel = source.panel[p];
    int at = i * (warpsPerCta * shape.tile / virtualPage(shape));
    if (virtualPages(shape) > 1) {
      at += panel.part;
      pages.part[p] = at % virtualPages(shape);
      at /= virtualPages(shape);
    }
#pragma unroll
    for (int s = 0; s < segments(shape, p); ++s) {
      int e = at + s * segmentStep(shape, p);
      if (clamps && e > panel.high)
        e = panel.high;
      if (clamps && shape.hasWindow && first && e < panel.low)
        e = panel.low;
      pages.id[p][s] = ptx::loadI32(panel.entries, e);
    }
  }
}

} // namespace kernels
} // namespace kvcache

#endif // KVCACHE_KERNELS_RING_H
