//===- KVCacheOps.td - Operations of the kvcache dialect -----*- tablegen -*-===//

#ifndef KVCACHE_IR_KVCACHEOPS_TD
#define KVCACHE_IR_KVCACHEOPS_TD

include "kvcache/IR/KVCacheAttributes.td"
include "kvcache/IR/KVCacheInterfaces.td"
include "mlir/IR/BuiltinAttributes.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/Interfaces/DestinationStyleOpInterface.td"
include "mlir/Interfaces/FunctionInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

class KVCache_Op<string mnemonic, list<Trait> traits = []> : Op<KVCache_Dialect, mnemonic, traits> {
  let hasVerifier = 1;
}

/// A module-level declaration: a symbol without operands, results and effects.
class KVCache_SymbolOp<string mnemonic, list<Trait> traits = []>
    : KVCache_Op<mnemonic, !listconcat([Symbol], traits)>;

// Memory behind handles. Ops on different caches may be reordered only by
// somebody who knows that the symbols differ, so all caches are one resource.
def KVCache_CacheResource : Resource<"::mlir::kvcache::CacheResource">;
// Scale buffers that are still dynamic are memory as well.
def KVCache_ScaleResource : Resource<"::mlir::kvcache::ScaleResource">;

def KVCache_QueryElement : AnyTypeOf<[F16, BF16, F32, F8E4M3FN, F8E5M2]>;
def KVCache_RowElement : AnyTypeOf<[F16, BF16, F32]>;
def KVCache_CodeElement : AnyTypeOf<[F8E4M3FN, F8E5M2, F8E4M3FNUZ]>;

class KVCache_Shaped<Type element, list<int> ranks, string descr>
    : AnyTypeOf<[TensorRankOf<[element], ranks>, MemRefRankOf<[element], ranks>], descr>;

def KVCache_Rows : KVCache_Shaped<KVCache_RowElement, [3], "tensor or memref [tokens, KV heads, head dim] of f16, bf16 or f32">;
def KVCache_LatentRows : KVCache_Shaped<KVCache_RowElement, [2], "tensor or memref [tokens, elements] of f16, bf16 or f32">;
def KVCache_Queries : KVCache_Shaped<KVCache_QueryElement, [3], "tensor or memref [tokens, query heads, head dim]">;
def KVCache_LSE : KVCache_Shaped<F32, [2], "tensor or memref [tokens, query heads] of f32">;
def KVCache_Partial : KVCache_Shaped<KVCache_RowElement, [3], "tensor or memref [tokens, query heads, head dim] of f16, bf16 or f32">;
def KVCache_PagePairs : KVCache_Shaped<I64, [2], "tensor or memref [pairs, 2] of i64">;
def KVCache_PerHead : KVCache_Shaped<F32, [1], "tensor or memref [query heads] of f32">;
def KVCache_RopeTable : KVCache_Shaped<F32, [2], "tensor or memref [positions, rotary dim] of f32">;
def KVCache_Positions : KVCache_Shaped<I64, [1], "tensor or memref [tokens] of i64">;
def KVCache_Activations : KVCache_Shaped<KVCache_QueryElement, [2, 3], "tensor or memref of activations">;

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

def KVCache_ScaleBufferOp : KVCache_SymbolOp<"scale_buffer"> {
  let summary = "declares one scale of a cache";
  let description = [{
    One dequantization multiplier, per tensor or per KV head, and where it is
    in its life cycle (see `#kvcache.scale`). Every use of the scale reads this
    symbol, so there is one value and not several copies that can drift.

    Constraints:

    * (C1) the symbol is used by ops of the same symbol table only (symbol
      visibility of MLIR).

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer1.k : f32 checkpoint "model.layers.1.self_attn.k_proj.k_scale"
    kvcache.scale_buffer @layer2.k : f32 = 1.250000e-02 from checkpoint "model.layers.2.self_attn.k_proj.k_scale"
    kvcache.scale_buffer @layer3.k : f32 = 1.000000e+00 from default
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, KVCache_ScaleAttr:$scale);
  let assemblyFormat = "$sym_name custom<ScaleBody>($scale) attr-dict";
  let hasVerifier = 0;
}

def KVCache_CacheGroupOp : KVCache_SymbolOp<"cache_group"> {
  let summary = "declares what caches with one page table share";
  let description = [{
    Caches of a group are addressed by one page table: token `t` of a sequence
    is in slot `page_table[sequence][t / page_size] * page_size + t %
    page_size`. The group's page table, lengths, query starts and slots come
    with it.

    Capacities bound what a program can hold; grids and workspaces are computed
    from them and never from live data:

    | attribute | bounds |
    |---|---|
    | `max_tokens` | rows of one step, over all sequences |
    | `max_sequences` | rows of the page table |
    | `max_pages_per_sequence` | columns of the page table |
    | `num_pages` | pages in the pool |

    Constraints:

    * (C1) the page size is a positive power of two;
    * (C2) capacities that are given are positive.

    Example:

    ```mlir
    kvcache.cache_group @full page_size 16
    kvcache.cache_group @bounded page_size 16 {max_pages_per_sequence = 2, max_sequences = 2, max_tokens = 8, num_pages = 7}
    ```
  }];
  let arguments = (ins
    SymbolNameAttr:$sym_name,
    I64Attr:$page_size,
    OptionalAttr<I64Attr>:$max_tokens,
    OptionalAttr<I64Attr>:$max_sequences,
    OptionalAttr<I64Attr>:$max_pages_per_sequence,
    OptionalAttr<I64Attr>:$num_pages
  );
  let assemblyFormat = "$sym_name `page_size` custom<GroupBody>($page_size, attr-dict)";
}

def KVCache_CacheOp : KVCache_SymbolOp<"cache", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "declares one layer's cache";
  let description = [{
    Keys and values of one attention layer: KV heads, head dim, element type,
    page layout, page table (by the group), and the scales of K and V. A layer
    that shares another layer's cache names that cache's symbol.

    Where one latent row is both key and value (MLA), one scale is both scales.

    Values may have a head dim of their own, `2 x 192 | 128 x bf16`. The pages of
    K and of V then have strides of their own, each as the layout says; those of
    `strides` hold for both.

    Where tensor parallelism splits the layer, the declaration is that of one
    rank: `shards` is the number of parts into which the KV heads of the layer
    were split, and the KV heads are those of one part
    (`kvcache-partition-caches`).

    With `token_scales` the write computes a scale for each token and KV head,
    `max(amax / 448, 1e-6)` with `amax` the largest magnitude of the row that is
    no NaN, and stores it where attention reads it: `side`, in tensors
    `[num_pages, page_size, KV heads]` of f32 beside the pages, or `inline`,
    behind the codes of the row. Rows are then `D + 4` bytes wide; layouts other
    than `strides` leave no gap between them. The two scales of the declaration
    are not applied.

    `graph_dtype` keeps the word that the imported graph asked for
    (`kv_cache_dtype`), for `kvcache-resolve-cache-types`.

    Constraints:

    * (C1) the group is a `kvcache.cache_group`;
    * (C2) the scales are `kvcache.scale_buffer`s;
    * (C3) a per-head scale has as many values as the cache has KV heads;
    * (C4) the type is a valid `!kvcache.cache`;
    * (C5) both scales of a latent cache are the same symbol;
    * (C6) the layout of a latent cache is `nhd`;
    * (C7) `shards` is at least 2 where it is given;
    * (C8) there are three `strides`, in elements, of page, token and head, just
      when the layout is `strides`;
    * (C9) with these strides no row overlaps another;
    * (C10) a cache with `token_scales` has elements of f8E4M3FN and is not
      latent.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer0.v : f32 dynamic
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
    kvcache.cache @latent of "model.layers.1.self_attn.attn" in @full : latent 512 + 64 x bf16 scales(@layer0.k, @layer0.k)
    kvcache.cache @padded of "model.layers.2.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v) layout strides [2560, 160, 80]
    kvcache.cache @scaled of "model.layers.3.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v) token_scales inline
    kvcache.cache @values of "model.layers.4.self_attn.attn" in @full : 2 x 192 | 128 x bf16 scales(@layer0.k, @layer0.v)
    ```
  }];
  let arguments = (ins
    SymbolNameAttr:$sym_name,
    StrAttr:$layer,
    FlatSymbolRefAttr:$group,
    TypeAttrOf<KVCache_CacheType>:$type,
    FlatSymbolRefAttr:$k_scale,
    FlatSymbolRefAttr:$v_scale,
    DefaultValuedAttr<KVCache_LayoutAttr, "::mlir::kvcache::Layout::NHD">:$layout,
    OptionalAttr<StrAttr>:$graph_dtype,
    OptionalAttr<I64Attr>:$shards,
    OptionalAttr<DenseI64ArrayAttr>:$strides,
    OptionalAttr<KVCache_TokenScalesAttr>:$token_scales
  );
  let builders = [OpBuilder<(ins "::mlir::StringAttr":$sym_name, "::mlir::StringAttr":$layer,
      "::mlir::FlatSymbolRefAttr":$group, "::mlir::TypeAttr":$type, "::mlir::FlatSymbolRefAttr":$k_scale,
      "::mlir::FlatSymbolRefAttr":$v_scale, "LayoutAttr":$layout, "::mlir::StringAttr":$graph_dtype,
      CArg<"::mlir::DenseI64ArrayAttr", "{}">:$strides), [{
    build($_builder, $_state, sym_name, layer, group, type, k_scale, v_scale, layout, graph_dtype, ::mlir::IntegerAttr(),
          strides, TokenScalesAttr());
  }]>];
  let assemblyFormat = [{
    $sym_name `of` $layer `in` $group `:` custom<CacheShape>($type)
    `scales` `(` $k_scale `,` $v_scale `)` (`layout` custom<LayoutBody>($layout, $strides)^)?
    (`token_scales` $token_scales^)? attr-dict
  }];
  let extraClassDeclaration = [{
    CacheType getCacheType() { return ::llvm::cast<CacheType>(getType()); }
    /// Codes of the cache are multiplied by the scales that it declares.
    bool usesDeclaredScales() { return getCacheType().isQuantized() && !getTokenScales(); }
    bool hasSideScales() { return getTokenScales() == TokenScales::Side; }
    bool hasInlineScales() { return getTokenScales() == TokenScales::Inline; }
    /// The side tensors of a cache that has them.
    ::mlir::MemRefType getTokenScalesType();
    /// What pages are made of: the cache's elements, or the bytes of rows that
    /// end in their scale.
    ::mlir::Type getPageElementType();
    /// Elements of a page for one token and head.
    int64_t getRowWidth(bool ofV = false) { return getCacheType().getRowWidth(ofV) + (hasInlineScales() ? 4 : 0); }
    CacheGroupOp getGroupOp();
    ScaleBufferOp getKScaleOp();
    ScaleBufferOp getVScaleOp();
    /// Strides of the pages of K, or of V, in elements: page, token, head, dim.
    ::llvm::SmallVector<int64_t, 4> getPageStrides(bool ofV = false);
    /// The pages of K, or of V; their number is dynamic where there is no
    /// capacity, and their offset is.
    ::mlir::MemRefType getPagesType(bool ofV);
    /// Whether rows are apart with these strides of page, token and head.
    bool acceptsStrides(::llvm::ArrayRef<int64_t> strides);
    /// `nhd`, `hnd`, `packed`, or `strides:PAGE,TOKEN,HEAD`.
    std::string getLayoutText();
    /// Elements from a page's first key to its first value when both are in
    /// one buffer (layout `packed`), else 0.
    int64_t getValueOffset();
  }];
}

//===----------------------------------------------------------------------===//
// Handles
//===----------------------------------------------------------------------===//

def KVCache_GetCacheOp : KVCache_Op<"get_cache", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "handle to a declared cache";
  let description = [{
    With `shards`, which upstream's `shard-partition` gives it, the handle is
    that of one rank, on which the cache has its part of the KV heads;
    `kvcache-partition-caches` then makes the declaration that of one rank too.

    Constraints:

    * (C1) the symbol is a `kvcache.cache`;
    * (C2) the result type is the cache's type, with the KV heads of one shard
      where `shards` is given;
    * (C3) `shards` is at least 2 and divides the KV heads of the cache.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer0.v : f32 dynamic
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
    func.func @handle() {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
      %half = kvcache.get_cache @layer0 shards 2 : !kvcache.cache<1 x 64 x bf16>
      return
    }
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$cache, OptionalAttr<I64Attr>:$shards);
  let results = (outs KVCache_CacheType:$handle);
  let builders = [OpBuilder<(ins "::mlir::Type":$handle, "::mlir::FlatSymbolRefAttr":$cache), [{
    build($_builder, $_state, handle, cache, ::mlir::IntegerAttr());
  }]>];
  let assemblyFormat = "$cache (`shards` custom<PlainInteger>($shards)^)? attr-dict `:` type($handle)";
  let extraClassDeclaration = [{
    /// Emits an error when the handle is one shard of a cache whose declaration
    /// is not yet that of one rank.
    ::llvm::LogicalResult checkPartitioned();
  }];
  let hasVerifier = 0;
}

def KVCache_ViewCacheOp : KVCache_Op<"view_cache", [Pure, AttrSizedOperandSegments, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "handle to a declared cache whose memory the caller holds";
  let description = [{
    The same handle as `kvcache.get_cache` gives, made from buffers:

    | operand | shape | meaning |
    |---|---|---|
    | `k_pages`, `v_pages` | `[num_pages, page_size, KV heads, head dim of keys or values]` in this logical order; the layout is in the strides. Of a latent cache `[num_pages, page_size, 1, L + R]`, given as both; of fp8_ds_mla bytes, and of `token_scales inline` bytes `[num_pages, page_size, KV heads, head dim + 4]` | codes |
    | `page_table` | `[max_sequences, max_pages_per_sequence]` i32 | page ids; entries past the last page of a sequence are never read |
    | `lengths` | `[max_sequences]` i32 | tokens in the cache, the new ones included |
    | `query_start` | `[max_sequences + 1]` i32 | first row of each sequence in this step |
    | `slots` | `[max_tokens]` i64 | where each row is written; negative: nowhere |
    | `k_scales`, `v_scales` | `[num_pages, page_size, KV heads]` f32, contiguous | of a cache with `token_scales side` |

    Constraints:

    * (C1) the symbol is a `kvcache.cache`, and the result type is its type;
    * (C2) pages have the cache's element type, page size, KV heads and head
      dim, of keys or of values, or are of bytes as above;
    * (C3) the strides of the pages, where static, are those of the cache's layout;
    * (C4) `query_start` has one entry more than `lengths`, and the page table one
      row for each entry of `lengths`, where these sizes are static;
    * (C5) both pages of a latent cache are the same value;
    * (C6) there are `token_scales` just when the cache has side tensors,
      contiguous and of its page size and KV heads.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
    kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @view(%kp: memref<7x16x2x64xf8E4M3FN>, %vp: memref<7x16x2x64xf8E4M3FN>, %table: memref<2x2xi32>,
                    %lengths: memref<2xi32>, %start: memref<3xi32>, %slots: memref<8xi64>) {
      %c = kvcache.view_cache @layer0 pages(%kp, %vp) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
        : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
        -> !kvcache.cache<2 x 64 x f8E4M3FN>
      return
    }
    ```
  }];
  let arguments = (ins
    FlatSymbolRefAttr:$cache,
    MemRefRankOf<[AnyType], [4]>:$k_pages,
    MemRefRankOf<[AnyType], [4]>:$v_pages,
    MemRefRankOf<[I32], [2]>:$page_table,
    MemRefRankOf<[I32], [1]>:$lengths,
    MemRefRankOf<[I32], [1]>:$query_start,
    MemRefRankOf<[I64], [1]>:$slots,
    Optional<MemRefRankOf<[F32], [3]>>:$k_scales,
    Optional<MemRefRankOf<[F32], [3]>>:$v_scales
  );
  let results = (outs KVCache_CacheType:$handle);
  let assemblyFormat = [{
    $cache `pages` `(` $k_pages `,` $v_pages `)` `page_table` `(` $page_table `)` `lengths` `(` $lengths `)`
    `query_start` `(` $query_start `)` `slots` `(` $slots `)`
    (`token_scales` `(` $k_scales^ `,` $v_scales `:` type($k_scales) `,` type($v_scales) `)`)? attr-dict `:`
    type($k_pages) `,` type($v_pages) `,` type($page_table) `,` type($lengths) `,` type($query_start) `,` type($slots)
    `->` type($handle)
  }];
  let hasVerifier = 0;
}

def KVCache_WithPagesOp : KVCache_Op<"with_pages", [
    SingleBlockImplicitTerminator<"YieldOp">, RecursiveMemoryEffects,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "cache ops on a cache whose memory is a tensor value";
  let description = [{
    For graphs that thread the cache through as a value. The region gets a
    handle to the given pages, and the cache ops in it run in their order; the
    results are the new values of the pages and, behind them, what the region
    yields. The other operands are those of `kvcache.view_cache`, as tensors.

    Bufferization puts the op's region in its place, on a `kvcache.view_cache`
    of the buffers. Pages are written in place: where that would need a copy
    (their old value is used later, or nobody may write them), it is an error
    that says why. The layout of a page is then that of the strides which the
    buffer's owner declares, as `bufferization.buffer_layout` of a function's
    argument for example; the cache's `layout` follows it.

    Constraints:

    * (C1) the symbol is a `kvcache.cache`, and the region's argument has its
      type;
    * (C2) there are two pages, or one of a latent cache, of the cache's element
      type, page size, KV heads and head dim, of keys or of values;
    * (C3) `query_start` has one entry more than `lengths`, and the page table
      one row for each entry of `lengths`, where these sizes are static;
    * (C4) the results have the types of the pages, and then of what is yielded;
    * (C5) the cache has no side tensors of `token_scales`, which are no pages.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
    kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @step(%q: tensor<8x4x64xbf16>, %k: tensor<8x2x64xbf16>, %v: tensor<8x2x64xbf16>, %out: tensor<8x4x64xbf16>,
                    %kp: tensor<7x16x2x64xf8E4M3FN>, %vp: tensor<7x16x2x64xf8E4M3FN>, %table: tensor<2x2xi32>,
                    %lengths: tensor<2xi32>, %start: tensor<3xi32>, %slots: tensor<8xi64>)
        -> (tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16>) {
      %kn, %vn, %o = kvcache.with_pages @layer0 pages(%kp, %vp : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>)
        page_table(%table : tensor<2x2xi32>) lengths(%lengths : tensor<2xi32>) query_start(%start : tensor<3xi32>)
        slots(%slots : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16> {
      ^bb0(%c: !kvcache.cache<2 x 64 x f8E4M3FN>):
        kvcache.write %k, %v to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
        %a = kvcache.paged_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64}
          : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<8x4x64xbf16>
        kvcache.yield %a : tensor<8x4x64xbf16>
      }
      return %kn, %vn, %o : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>, tensor<8x4x64xbf16>
    }
    ```
  }];
  let arguments = (ins
    FlatSymbolRefAttr:$cache,
    Variadic<TensorRankOf<[AnyType], [4]>>:$pages,
    TensorRankOf<[I32], [2]>:$page_table,
    TensorRankOf<[I32], [1]>:$lengths,
    TensorRankOf<[I32], [1]>:$query_start,
    TensorRankOf<[I64], [1]>:$slots
  );
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    $cache `pages` `(` $pages `:` type($pages) `)` `page_table` `(` $page_table `:` type($page_table) `)`
    `lengths` `(` $lengths `:` type($lengths) `)` `query_start` `(` $query_start `:` type($query_start) `)`
    `slots` `(` $slots `:` type($slots) `)` attr-dict `->` type($results) $body
  }];
  let hasVerifier = 0;
  let extraClassDeclaration = [{
    /// The handle that the region gets.
    BlockArgument getHandle() { return getBody().getArgument(0); }
  }];
}

def KVCache_YieldOp : KVCache_Op<"yield", [Pure, Terminator, HasParent<"WithPagesOp">]> {
  let summary = "ends the region of kvcache.with_pages";
  let description = [{
    What the region computes beside the new pages.

    Constraints:

    * (C1) it ends the region of a `kvcache.with_pages`.
  }];
  let arguments = (ins Variadic<AnyType>:$values);
  let builders = [OpBuilder<(ins)>];
  let assemblyFormat = "attr-dict ($values^ `:` type($values))?";
  let hasVerifier = 0;
}

def KVCache_LoadScaleOp : KVCache_Op<"load_scale", [
    MemoryEffects<[MemRead<KVCache_ScaleResource>]>, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "a scale as an SSA value";
  let description = [{
    For ops outside the dialect. `kvcache-fold-checkpoint-scales` replaces it
    by a constant.

    Constraints:

    * (C1) the symbol is a `kvcache.scale_buffer` that is not per head.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 dynamic
    func.func @scale() -> f32 {
      %s = kvcache.load_scale @layer0.k : f32
      return %s : f32
    }
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$scale);
  let results = (outs F32:$value);
  let assemblyFormat = "$scale attr-dict `:` type($value)";
  let hasVerifier = 0;
}

def KVCache_CalculateScalesOp : KVCache_Op<"calculate_scales", [
    DeclareOpInterfaceMethods<CacheOpInterface>,
    DeclareOpInterfaceMethods<CaptureHazardOpInterface>]> {
  let summary = "run-time estimate of a cache's scales, which no longer exists";
  let description = [{
    What serving stacks did on the first forward pass: `q = max|Q| / 200`,
    `k = max|K| / 200`, `v = max|V| / 100`, written to the scale buffers and
    read back on the host. It cannot be captured and changes the numbers of
    every later run. The op exists so that `kvcache-drop-dynamic-scales` can
    remove it with a diagnostic; nothing lowers it.

    Operands are tensors or memrefs of rank 2 or 3, tokens first.

    Constraints:

    * (C1) key and value have as many elements a token as the cache's row; of a
      latent cache they are its latent and its rotary part.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer0.v : f32 dynamic
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
    func.func @legacy(%q: tensor<?x256xbf16>, %k: tensor<?x128xbf16>, %v: tensor<?x128xbf16>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
      kvcache.calculate_scales %q, %k, %v for %c
        : tensor<?x256xbf16>, tensor<?x128xbf16>, tensor<?x128xbf16>, !kvcache.cache<2 x 64 x bf16>
      return
    }
    ```
  }];
  let arguments = (ins
    Arg<KVCache_Activations, "", [MemRead]>:$query,
    Arg<KVCache_Activations, "", [MemRead]>:$key,
    Arg<KVCache_Activations, "", [MemRead]>:$value,
    Arg<KVCache_CacheType, "", [MemWrite<KVCache_ScaleResource>]>:$cache
  );
  let assemblyFormat = "$query `,` $key `,` $value `for` $cache attr-dict `:` type($query) `,` type($key) `,` type($value) `,` type($cache)";
}

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

/// Quantize and dequantize: on tensors with a result and without effects, on
/// memrefs into `out`.
class KVCache_ElementwiseOp<string mnemonic, list<Type> from, list<Type> to>
    : KVCache_Op<mnemonic, [AlwaysSpeculatable, DeclareOpInterfaceMethods<MemoryEffectsOpInterface>]> {
  let arguments = (ins
    AnyTypeOf<[TensorOf<from>, MemRefOf<from>]>:$input,
    F32:$scale,
    Optional<MemRefOf<to>>:$out
  );
  let results = (outs Optional<TensorOf<to>>:$result);
  let assemblyFormat = [{
    $input `by` $scale (`outs` `(` $out^ `)`)? attr-dict `:` type($input) `to` custom<Target>(type($out), type($result))
  }];
  let extraClassDeclaration = [{
    /// The type that is written: of the result, or of `out`.
    ::mlir::ShapedType getTargetType() {
      ::mlir::Value target = getOut() ? ::mlir::Value(getOut()) : ::mlir::Value(getResult());
      return ::llvm::cast<::mlir::ShapedType>(target.getType());
    }
  }];
}

def KVCache_QuantizeOp : KVCache_ElementwiseOp<"quantize", [F16, BF16, F32], [F8E4M3FN, F8E5M2, F8E4M3FNUZ]> {
  let summary = "elementwise quantization, saturating";
  let description = [{
    `code = convert(clamp(x * (1 / scale)))` in f32: the reciprocal is rounded,
    the product is rounded, the clamp is to the largest finite value of the
    result type (infinities saturate, NaN stays NaN), and the conversion rounds
    to nearest even. This is the form that is used for queries, activations and
    attention outputs; `kvcache.write` divides instead.

    Constraints:

    * (C1) input and result (or `outs`) have the same shape;
    * (C2) a tensor gives a result, a memref is quantized into `outs`.

    Example:

    ```mlir
    func.func @quantize(%x: tensor<?x64xbf16>, %s: f32) -> tensor<?x64xf8E4M3FN> {
      %y = kvcache.quantize %x by %s : tensor<?x64xbf16> to tensor<?x64xf8E4M3FN>
      return %y : tensor<?x64xf8E4M3FN>
    }
    func.func @quantize_buffers(%x: memref<8x64xbf16>, %s: f32, %y: memref<8x64xf8E4M3FN>) {
      kvcache.quantize %x by %s outs(%y) : memref<8x64xbf16> to memref<8x64xf8E4M3FN>
      return
    }
    ```
  }];
}

def KVCache_DequantizeOp : KVCache_ElementwiseOp<"dequantize", [F8E4M3FN, F8E5M2, F8E4M3FNUZ], [F16, BF16, F32]> {
  let summary = "elementwise dequantization";
  let description = [{
    `x = convert(f32(code) * scale)`: the code is widened exactly, the product
    is rounded to f32, and the result is rounded to nearest even.

    Constraints:

    * (C1) input and result (or `outs`) have the same shape;
    * (C2) a tensor gives a result, a memref is dequantized into `outs`.

    Example:

    ```mlir
    func.func @dequantize(%x: tensor<?x64xf8E4M3FN>, %s: f32) -> tensor<?x64xbf16> {
      %y = kvcache.dequantize %x by %s : tensor<?x64xf8E4M3FN> to tensor<?x64xbf16>
      return %y : tensor<?x64xbf16>
    }
    ```
  }];
}

def KVCache_MergeStatesOp : KVCache_Op<"merge_states", [
    DestinationStyleOpInterface, AlwaysSpeculatable,
    AllTypesMatch<["a", "b", "out"]>, AllTypesMatch<["lse_a", "lse_b", "lse"]>,
    DeclareOpInterfaceMethods<CaptureHazardOpInterface>,
    DeclareOpInterfaceMethods<MemoryEffectsOpInterface>]> {
  let summary = "merge of two partial attentions by their LSE";
  let description = [{
    Two attentions of the same queries over disjoint keys become the attention
    over all of them. With the natural logarithms `la` and `lb` of a query head
    of a row, as `kvcache.paged_attention` gives them:

        lse = log(exp(la) + exp(lb))
        out = exp(la - lse) * a + exp(lb - lse) * b

    in f32, rounded once to the element type. Every row of `outs` is written.

    Edges: a partial without keys has an LSE of minus infinity; what it holds
    does not count, be it NaN. Two of them give 0 and an LSE of minus infinity.
    An LSE of NaN gives NaN.

    On tensors the op returns the new values of `outs`; on memrefs it has no
    results.

    Constraints:

    * (C1) both partials and the output have the same type, and so have the
      three LSEs;
    * (C2) an LSE is `[tokens, query heads]` of the partials;
    * (C3) memrefs of `outs` are not those of the partials.

    Example:

    ```mlir
    func.func @merge(%a: tensor<?x4x64xbf16>, %la: tensor<?x4xf32>, %b: tensor<?x4x64xbf16>, %lb: tensor<?x4xf32>,
                     %out: tensor<?x4x64xbf16>, %l: tensor<?x4xf32>) -> (tensor<?x4x64xbf16>, tensor<?x4xf32>) {
      %o, %lse = kvcache.merge_states %a, %la with %b, %lb outs(%out, %l) : tensor<?x4x64xbf16>, tensor<?x4xf32>
        -> tensor<?x4x64xbf16>, tensor<?x4xf32>
      return %o, %lse : tensor<?x4x64xbf16>, tensor<?x4xf32>
    }
    ```
  }];
  let arguments = (ins
    KVCache_Partial:$a,
    KVCache_LSE:$lse_a,
    KVCache_Partial:$b,
    KVCache_LSE:$lse_b,
    KVCache_Partial:$out,
    KVCache_LSE:$lse
  );
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = [{
    $a `,` $lse_a `with` $b `,` $lse_b `outs` `(` $out `,` $lse `)` attr-dict `:` type($a) `,` type($lse_a)
    (`->` type($results)^)?
  }];
  let extraClassDeclaration = [{
    ::mlir::MutableOperandRange getDpsInitsMutable();
  }];
}

//===----------------------------------------------------------------------===//
// Cache accesses
//===----------------------------------------------------------------------===//

class KVCache_WritingOp<string mnemonic> : KVCache_Op<mnemonic, [
    AttrSizedOperandSegments,
    DeclareOpInterfaceMethods<CacheOpInterface>,
    DeclareOpInterfaceMethods<CaptureHazardOpInterface>,
    DeclareOpInterfaceMethods<ScaleUserInterface>]>;

def KVCache_WriteOp : KVCache_WritingOp<"write"> {
  let summary = "quantized write of K and V rows into a cache";
  let description = [{
    Row `t` goes to slot `slots[t]` of the cache's group: page `slot /
    page_size`, token `slot % page_size`. A negative slot skips the row, and so
    does a slot past the pool. Into a quantized cache `code =
    convert(clamp(x / scale))`: a true division in f32, clamped to the largest
    finite value (infinities saturate, NaN stays NaN), rounded to nearest even.
    Into other caches rows are converted.

    Into a cache with `token_scales` `code = convert(clamp(x * (1 / s)))` with
    the row's own scale `s` of a KV head, in f32, the reciprocal and the product
    each rounded; `s` goes to the same slot of the side tensors.

    With a `rope` table the first `R` (rotary dim) elements of each key are
    rotated by the angles of the row's position before that; values are not.
    Row `p` of the table holds the cosines of the `R / 2` angles of position
    `p`, then their sines. A pair `(x, y)` becomes `(x * cos - y * sin, x * sin
    + y * cos)` in f32, each product and sum rounded; elements `i` and `i + R /
    2` are the pair of angle `i` (as in GPT-NeoX), with `rope_interleaved` the
    elements `2 i` and `2 i + 1`. The position of a row without a slot is not
    read; a position outside the table skips its row, as a slot past the pool.

    Constraints:

    * (C1) key and value have the same type but for their last dimension;
    * (C2) rows are `[tokens, KV heads, head dim]` of the cache, those of values
      with the head dim of values;
    * (C3) the cache is not latent;
    * (C4) a `rope` table has an even rotary dim up to the head dim, and at
      least one position;
    * (C5) there are as many positions as rows, where these sizes are static;
    * (C6) `rope_interleaved` comes with a `rope` table.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
    kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @write(%k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      kvcache.write %k, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
      return
    }
    func.func @rotate_and_write(%k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %cos_sin: tensor<4096x64xf32>, %positions: tensor<?xi64>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      kvcache.write %k, %v to %c rope(%cos_sin at %positions : tensor<4096x64xf32>, tensor<?xi64>)
        : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
      return
    }
    ```
  }];
  let arguments = (ins
    Arg<KVCache_Rows, "", [MemRead]>:$key,
    Arg<KVCache_Rows, "", [MemRead]>:$value,
    Arg<KVCache_CacheType, "", [MemWrite<KVCache_CacheResource>]>:$cache,
    Arg<Optional<KVCache_RopeTable>, "", [MemRead]>:$rope_table,
    Arg<Optional<KVCache_Positions>, "", [MemRead]>:$positions,
    UnitAttr:$rope_interleaved
  );
  let builders = [OpBuilder<(ins "::mlir::Value":$key, "::mlir::Value":$value, "::mlir::Value":$cache), [{
    build($_builder, $_state, key, value, cache, /*rope_table=*/{}, /*positions=*/{}, /*rope_interleaved=*/false);
  }]>];
  let assemblyFormat = [{
    $key `,` $value `to` $cache (`rope` `(` $rope_table^ `at` $positions `:` type($rope_table) `,` type($positions) `)`)?
    attr-dict `:` type($key) `,` type($value) `,` type($cache)
  }];
}

def KVCache_WriteLatentOp : KVCache_WritingOp<"write_latent"> {
  let summary = "quantized write of latent rows into a cache of MLA";
  let description = [{
    Row `t`, the latent part and behind it the rotary part, goes to slot
    `slots[t]` of the cache's group, as `kvcache.write` says; both parts are
    divided by the cache's one scale. Into a cache of fp8_ds_mla rows the
    latent part is divided by the scale of its tile, `max(amax / 448, 2^-126)`
    with `amax` the largest magnitude that is no NaN of the 128 elements, and
    the rotary part is converted to bf16. All of it is f32 arithmetic.

    With a `rope` table the rotary part is rotated before that, as
    `kvcache.write` says of keys.

    Constraints:

    * (C1) the cache is latent;
    * (C2) the latent part is `[tokens, L]` and the rotary part `[tokens, R]` of
      the cache;
    * (C3) both have the same element type and number of tokens;
    * (C4) a `rope` table has the rotary dim `R`, which is then even, and at
      least one position;
    * (C5) there are as many positions as rows, where these sizes are static;
    * (C6) `rope_interleaved` comes with a `rope` table.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : latent 512 + 64 x f8E4M3FN scales(@layer0.k, @layer0.k)
    func.func @write(%latent: tensor<?x512xbf16>, %rope: tensor<?x64xbf16>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<latent 512 + 64 x f8E4M3FN>
      kvcache.write_latent %latent, %rope to %c
        : tensor<?x512xbf16>, tensor<?x64xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN>
      return
    }
    ```
  }];
  let arguments = (ins
    Arg<KVCache_LatentRows, "", [MemRead]>:$latent,
    Arg<KVCache_LatentRows, "", [MemRead]>:$rope,
    Arg<KVCache_CacheType, "", [MemWrite<KVCache_CacheResource>]>:$cache,
    Arg<Optional<KVCache_RopeTable>, "", [MemRead]>:$rope_table,
    Arg<Optional<KVCache_Positions>, "", [MemRead]>:$positions,
    UnitAttr:$rope_interleaved
  );
  let builders = [OpBuilder<(ins "::mlir::Value":$latent, "::mlir::Value":$rope, "::mlir::Value":$cache), [{
    build($_builder, $_state, latent, rope, cache, /*rope_table=*/{}, /*positions=*/{}, /*rope_interleaved=*/false);
  }]>];
  let assemblyFormat = [{
    $latent `,` $rope `to` $cache (`rope` `(` $rope_table^ `at` $positions `:` type($rope_table) `,` type($positions) `)`)?
    attr-dict `:` type($latent) `,` type($rope) `,` type($cache)
  }];
}

def KVCache_CopyPagesOp : KVCache_Op<"copy_pages", [
    DeclareOpInterfaceMethods<CacheOpInterface>,
    DeclareOpInterfaceMethods<CaptureHazardOpInterface>]> {
  let summary = "copy of whole pages within a cache";
  let description = [{
    For sequences that part: each of the `pairs` is a page to copy from and a
    page to copy to, keys and values alike, bit for bit, with the scales of their
    tokens. A pair with a negative page, or with one past the pool, is skipped. No page may be copied to twice,
    or both from and to: what such a page then holds is undefined.

    Constraints:

    * (C1) a pair has two entries.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
    kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @copy(%pairs: tensor<?x2xi64>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      kvcache.copy_pages %pairs in %c : tensor<?x2xi64>, !kvcache.cache<2 x 64 x f8E4M3FN>
      return
    }
    ```
  }];
  let arguments = (ins
    Arg<KVCache_PagePairs, "", [MemRead]>:$pairs,
    Arg<KVCache_CacheType, "", [MemRead<KVCache_CacheResource>, MemWrite<KVCache_CacheResource>]>:$cache
  );
  let assemblyFormat = "$pairs `in` $cache attr-dict `:` type($pairs) `,` type($cache)";
}

/// Attention over a cache. Passes handle all of them by AttentionOpInterface.
class KVCache_AttentionOp<string mnemonic, list<Trait> traits = []> : KVCache_Op<mnemonic, !listconcat([
    DestinationStyleOpInterface,
    AttentionOpInterface,
    DeclareOpInterfaceMethods<MemoryEffectsOpInterface>,
    DeclareOpInterfaceMethods<CacheOpInterface>,
    DeclareOpInterfaceMethods<CaptureHazardOpInterface>,
    DeclareOpInterfaceMethods<SymbolUserOpInterface>,
    DeclareOpInterfaceMethods<ScaleUserInterface>], traits)> {
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    ::mlir::MutableOperandRange getDpsInitsMutable();
  }];
}

def KVCache_PagedAttentionOp : KVCache_AttentionOp<"paged_attention", [AttrSizedOperandSegments]> {
  let summary = "attention of ragged queries over a paged cache";
  let description = [{
    Rows `query_start[s] .. query_start[s+1]` belong to sequence `s`. Query `i`
    of `n` in a sequence of length `L` sits at position `p = L - n + i` and
    sees the keys `[max(0, p - window), p]`; `window` counts keys before the
    query. Query head `h` reads KV head `h / (query heads / KV heads)`.

        S = softmax_scale * q_scale * k_scale * (Q . Kcode)
        S = soft_cap * tanh(S / soft_cap)              when soft_cap is given
        S = S + alibi_slopes[h] * (key - p)            when slopes are given
        O = v_scale * (softmax(S) . Vcode) / o_scale

    Over a cache with `token_scales` `k_scale` and `v_scale` are those of the
    key's token and KV head.

    `sinks[h]` is one more score in the softmax, without a value: it joins the
    maximum and the denominator. Queries that are FP8 codes have the scale
    `q_scale`, outputs that are codes the scale `o_scale`: they are clamped to
    the largest finite value and rounded to nearest even.

    `lse` receives the natural logarithm of the sum of `exp(S)` (f32), the sink
    included.

    Edges: rows at or past `query_start[sequences]` are left as they are in
    `outs`; a query at a negative position, and so one of an empty sequence,
    gives 0 and an LSE of minus infinity; bytes of the cache outside the seen
    keys may hold NaN and do not reach the output; NaN in a seen key or value
    propagates to its own sequence only.

    `softmax_scale` may be missing until the model's config is known. On
    tensors the op returns the new values of `outs`; on memrefs it has no
    results.

    Constraints:

    * (C1) queries are `[tokens, query heads, head dim]` with the cache's head
      dim;
    * (C2) the number of query heads is a multiple of the number of KV heads;
    * (C3) the output has the shape of the query, with the head dim of the
      cache's values;
    * (C4) the LSE is `[tokens, query heads]`;
    * (C5) `softmax_scale` and `soft_cap` are finite and positive, `window` is
      not negative;
    * (C6) the cache is not latent;
    * (C7) there is a `q_scale` just when the queries are FP8, and an `o_scale`
      just when the output is;
    * (C8) `q_scale` and `o_scale` are `kvcache.scale_buffer`s that are not per
      head;
    * (C9) `sinks` and `alibi_slopes` have one value for each query head.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
    kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @attention(%q: tensor<?x4x64xbf16>, %out: tensor<?x4x64xbf16>, %l: tensor<?x4xf32>)
        -> (tensor<?x4x64xbf16>, tensor<?x4xf32>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      %o, %lse = kvcache.paged_attention %q over %c outs(%out, %l) {softmax_scale = 1.250000e-01 : f64}
        : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
      return %o, %lse : tensor<?x4x64xbf16>, tensor<?x4xf32>
    }
    kvcache.scale_buffer @layer0.q : f32 = 2.500000e-02 from override
    func.func @sinks_and_fp8_queries(%q: memref<8x4x64xf8E4M3FN>, %out: memref<8x4x64xbf16>, %sinks: memref<4xf32>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      kvcache.paged_attention %q over %c outs(%out) sinks(%sinks : memref<4xf32>) {q_scale = @layer0.q, softmax_scale = 1.250000e-01 : f64}
        : memref<8x4x64xf8E4M3FN>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
      return
    }
    ```
  }];
  let arguments = (ins
    KVCache_Queries:$query,
    KVCache_CacheType:$cache,
    KVCache_Queries:$out,
    Optional<KVCache_LSE>:$lse,
    Optional<KVCache_PerHead>:$sinks,
    Optional<KVCache_PerHead>:$alibi_slopes,
    OptionalAttr<F64Attr>:$softmax_scale,
    OptionalAttr<F64Attr>:$soft_cap,
    OptionalAttr<I64Attr>:$window,
    OptionalAttr<FlatSymbolRefAttr>:$q_scale,
    OptionalAttr<FlatSymbolRefAttr>:$o_scale
  );
}

def KVCache_MLAAttentionOp : KVCache_AttentionOp<"mla_attention"> {
  let summary = "attention of ragged queries over a paged latent cache";
  let description = [{
    Multi-head latent attention in its absorbed form: one latent row is the key
    of all query heads, and its first `L` elements are their value. Queries are
    already multiplied by the key half of the up-projection, and the output is
    still to be multiplied by the value half.

        S = softmax_scale * q_scale * k_scale * (Q . Rowcode)   over L + R elements
        O = k_scale * (softmax(S) . Rowcode[0 : L]) / o_scale

    Of fp8_ds_mla rows the latent codes are multiplied by the scales of their
    tiles, the rotary part by nothing. Sequences, positions, FP8 queries and
    outputs, the LSE and the edges are those of `kvcache.paged_attention`.

    Constraints:

    * (C1) the cache is latent;
    * (C2) queries are `[tokens, query heads, L + R]` of the cache;
    * (C3) the output is `[tokens, query heads, L]`;
    * (C4) the LSE is `[tokens, query heads]`;
    * (C5) `softmax_scale` is finite and positive;
    * (C6) there is a `q_scale` just when the queries are FP8, and an `o_scale`
      just when the output is;
    * (C7) `q_scale` and `o_scale` are `kvcache.scale_buffer`s that are not per
      head.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.250000e-02 from override
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : latent 512 + 64 x f8E4M3FN scales(@layer0.k, @layer0.k)
    func.func @attention(%q: tensor<?x16x576xbf16>, %out: tensor<?x16x512xbf16>) -> tensor<?x16x512xbf16> {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<latent 512 + 64 x f8E4M3FN>
      %o = kvcache.mla_attention %q over %c outs(%out) {softmax_scale = 7.2168783648703216e-02 : f64}
        : tensor<?x16x576xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN> -> tensor<?x16x512xbf16>
      return %o : tensor<?x16x512xbf16>
    }
    ```
  }];
  let arguments = (ins
    KVCache_Queries:$query,
    KVCache_CacheType:$cache,
    KVCache_Queries:$out,
    Optional<KVCache_LSE>:$lse,
    OptionalAttr<F64Attr>:$softmax_scale,
    OptionalAttr<FlatSymbolRefAttr>:$q_scale,
    OptionalAttr<FlatSymbolRefAttr>:$o_scale
  );
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

def KVCache_ProgramOp : KVCache_SymbolOp<"program", [
    FunctionOpInterface, IsolatedFromAbove, SymbolTable, NoTerminator, SingleBlock]> {
  let summary = "what one static graph holds";
  let description = [{
    The arguments are buffers (memrefs) at addresses that stay the same from
    replay to replay; each has a `kvcache.name` and a `kvcache.role`. The body
    is a list of `kvcache.segment`s. One segment can be captured as one graph;
    where a function has foreign ops between its cache ops, the program has one
    segment for each run of cache ops, and the function calls them.

    A program with a `batch_size` is the one that `bucket_of` names for a smaller
    batch: the same segments over the same buffers, with grids and constants for
    `batch_size` sequences and as many tokens a sequence as the group has.

    Constraints:

    * (C1) every argument is a memref and has a name, unique in the program,
      and a role;
    * (C2) the body holds only segments;
    * (C3) a program has no results;
    * (C4) `batch_size` is positive and comes with `bucket_of`.

    Example:

    ```mlir
    kvcache.program @empty(%x: memref<8xf32> {kvcache.name = "x", kvcache.role = #kvcache<role activation>}) {
      kvcache.segment @first {
      }
    }
    ```
  }];
  let arguments = (ins
    SymbolNameAttr:$sym_name,
    TypeAttrOf<FunctionType>:$function_type,
    OptionalAttr<DictArrayAttr>:$arg_attrs,
    OptionalAttr<DictArrayAttr>:$res_attrs,
    OptionalAttr<I64Attr>:$batch_size,
    OptionalAttr<FlatSymbolRefAttr>:$bucket_of
  );
  let regions = (region SizedRegion<1>:$body);
  let builders = [OpBuilder<(ins "::llvm::StringRef":$name, "::mlir::TypeRange":$argumentTypes,
                                 "::llvm::ArrayRef<::mlir::DictionaryAttr>":$argumentAttributes)>];
  let skipDefaultBuilders = 1;
  let hasCustomAssemblyFormat = 1;
  let extraClassDeclaration = [{
    ::llvm::ArrayRef<::mlir::Type> getArgumentTypes() { return getFunctionType().getInputs(); }
    ::llvm::ArrayRef<::mlir::Type> getResultTypes() { return getFunctionType().getResults(); }
    ::mlir::Region *getCallableRegion() { return &getBody(); }
    ::llvm::StringRef getBufferName(unsigned index);
    BufferRole getBufferRole(unsigned index);
    /// Sequences and tokens that its launches for caches of `group` have room
    /// for; 0 where the group has no such capacity.
    std::pair<int64_t, int64_t> getRoom(CacheGroupOp group);
  }];
}

def KVCache_SegmentOp : KVCache_SymbolOp<"segment", [
    HasParent<"ProgramOp">, NoTerminator, SingleBlock]> {
  let summary = "a run of launches that nothing foreign interrupts";
  let description = [{
    Uses the buffers of its program. Before kernel selection it holds cache
    ops, after it `kvcache.launch`es.

    Constraints:

    * (C1) the segment is inside a `kvcache.program`.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name attr-dict-with-keyword $body";
  let hasVerifier = 0;
}

def KVCache_LaunchOp : KVCache_Op<"launch", [
    MemoryEffects<[MemRead, MemWrite]>,
    DeclareOpInterfaceMethods<CaptureHazardOpInterface>]> {
  let summary = "launch of a selected kernel";
  let description = [{
    The kernel is `function` of the device library, specialised for
    `structure`: the integers that the compiler folds into the code. Its
    arguments are the buffers and then the `constants`, whose values the graph
    captures; `origins` says, for each constant, the formula behind it. Grid,
    block and shared memory are functions of capacities only.
    `min_ctas_per_sm` bounds the registers of the kernel; `layer` names the
    cache that the launch works on.

    Constraints:

    * (C1) grid and block have three positive entries, the block at most 1,024
      threads;
    * (C2) shared memory is not negative;
    * (C3) there is one origin for each constant;
    * (C4) constants are f32, i32 or i64.

    Example:

    ```mlir
    kvcache.program @main(%slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>}) {
      kvcache.segment @first {
        kvcache.launch @write_example of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
          args(%slots : memref<8xi64>) constants [8 : i32] origins ["max_tokens"] structure [80 : i32]
      }
    }
    ```
  }];
  let arguments = (ins
    FlatSymbolRefAttr:$kernel,
    StrAttr:$function,
    DenseI64ArrayAttr:$grid,
    DenseI64ArrayAttr:$block,
    I64Attr:$shared_bytes,
    Variadic<AnyMemRef>:$buffers,
    ArrayAttr:$constants,
    StrArrayAttr:$origins,
    ArrayAttr:$structure,
    OptionalAttr<StrAttr>:$layer,
    OptionalAttr<I64Attr>:$min_ctas_per_sm
  );
  let assemblyFormat = [{
    $kernel `of` $function `grid` $grid `block` $block `shared` custom<PlainInteger>($shared_bytes)
    `args` `(` ($buffers^ `:` type($buffers))? `)` `constants` $constants `origins` $origins `structure` $structure
    (`layer` $layer^)? attr-dict
  }];
}

#endif // KVCACHE_IR_KVCACHEOPS_TD
