//===- KVCacheAttributes.td - Enums, attributes and types ----*- tablegen -*-===//

#ifndef KVCACHE_IR_KVCACHEATTRIBUTES_TD
#define KVCACHE_IR_KVCACHEATTRIBUTES_TD

include "kvcache/IR/KVCacheDialect.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinTypeInterfaces.td"
include "mlir/IR/EnumAttr.td"

//===----------------------------------------------------------------------===//
// Enums
//===----------------------------------------------------------------------===//

class KVCache_Enum<string name, string summary, list<I32EnumAttrCase> cases>
    : I32EnumAttr<name, summary, cases> {
  let cppNamespace = "::mlir::kvcache";
  let genSpecializedAttr = 0;
}

def KVCache_ScaleState : KVCache_Enum<"ScaleState", "where in its life cycle a scale is", [
  I32EnumAttrCase<"Dynamic", 0, "dynamic">,
  I32EnumAttrCase<"Checkpoint", 1, "checkpoint">,
  I32EnumAttrCase<"Static", 2, "static">]>;

def KVCache_Provenance : KVCache_Enum<"Provenance", "where the value of a static scale comes from", [
  I32EnumAttrCase<"Checkpoint", 0, "checkpoint">,
  I32EnumAttrCase<"Default", 1, "default">,
  I32EnumAttrCase<"Duplicate", 2, "duplicate">,
  I32EnumAttrCase<"Maximum", 3, "maximum">,
  I32EnumAttrCase<"Override", 4, "override">]>;

def KVCache_ScaleRole : KVCache_Enum<"ScaleRole", "what a scale belongs to", [
  I32EnumAttrCase<"Q", 0, "q">, I32EnumAttrCase<"K", 1, "k">,
  I32EnumAttrCase<"V", 2, "v">, I32EnumAttrCase<"Prob", 3, "prob">,
  I32EnumAttrCase<"O", 4, "o">]>;

def KVCache_ScaleUse : KVCache_Enum<"ScaleUse", "how a scale enters the arithmetic of an op", [
  I32EnumAttrCase<"Divisor", 0, "divisor">,
  I32EnumAttrCase<"ScoreFactor", 1, "score_factor">,
  I32EnumAttrCase<"OutputFactor", 2, "output_factor">]>;

def KVCache_CacheAccess : KVCache_Enum<"CacheAccess", "what an op does to a cache", [
  I32EnumAttrCase<"Read", 1, "read">, I32EnumAttrCase<"Write", 2, "write">]>;

def KVCache_Layout : KVCache_Enum<"Layout", "order of a page's dimensions in memory", [
  I32EnumAttrCase<"NHD", 0, "nhd">, I32EnumAttrCase<"HND", 1, "hnd">,
  I32EnumAttrCase<"Packed", 2, "packed">, I32EnumAttrCase<"Strides", 3, "strides">]>;

def KVCache_LayoutAttr : EnumAttr<KVCache_Dialect, KVCache_Layout, "layout"> {
  let summary = "order of a page's dimensions in memory";
  let description = [{
    * `nhd`: token, KV head, dim;
    * `hnd`: KV head, token, dim;
    * `packed`: a page holds its keys and then its values, each as `nhd`;
    * `strides`: what the `strides` of the cache say, for padded pages and pools
      of other makers.
  }];
}

def KVCache_TokenScales : KVCache_Enum<"TokenScales", "where a cache keeps scales of tokens", [
  I32EnumAttrCase<"Side", 0, "side">, I32EnumAttrCase<"Inline", 1, "inline">]>;

def KVCache_TokenScalesAttr : EnumAttr<KVCache_Dialect, KVCache_TokenScales, "token_scales"> {
  let summary = "where a cache keeps scales of tokens";
  let description = [{
    * `side`: in tensors `[num_pages, page_size, KV heads]` of f32 beside the
      pages of K and of V;
    * `inline`: behind the codes of each row, as some serving stacks keep them.
      A row is `D` bytes of codes and the four of its f32 scale, so pages are of
      `i8` and their last dimension is `D + 4`.
  }];
}

def KVCache_BufferRole : KVCache_Enum<"BufferRole", "what a program's buffer holds", [
  I32EnumAttrCase<"Activation", 0, "activation">,
  I32EnumAttrCase<"Cache", 1, "cache">,
  I32EnumAttrCase<"PageTable", 2, "page_table">,
  I32EnumAttrCase<"Lengths", 3, "lengths">,
  I32EnumAttrCase<"Slots", 4, "slots">,
  I32EnumAttrCase<"QueryStart", 5, "query_start">,
  I32EnumAttrCase<"Workspace", 6, "workspace">,
  I32EnumAttrCase<"Parameter", 7, "parameter">,
  I32EnumAttrCase<"PageCopies", 8, "page_copies">]>;

def KVCache_BufferRoleAttr : EnumAttr<KVCache_Dialect, KVCache_BufferRole, "role">;

//===----------------------------------------------------------------------===//
// Attributes and types
//===----------------------------------------------------------------------===//

def KVCache_ScaleAttr : AttrDef<KVCache_Dialect, "Scale"> {
  let mnemonic = "scale";
  let summary = "state, value and provenance of a scale";
  let description = [{
    One of

    * `#kvcache.scale<dynamic>`: computed at run time; nothing after
      `kvcache-drop-dynamic-scales` accepts it;
    * `#kvcache.scale<checkpoint "key">`: bound to a checkpoint tensor whose
      value has not been read;
    * `#kvcache.scale<1.25 from checkpoint "key">` and the like: a value, and
      where it comes from: `checkpoint "key"` (loaded), `default` (1.0, nothing
      was given), `duplicate "key"` (the other scale of the layer), `maximum
      "key"`, or `override` (given by the user).

    Constraints:

    * (C1) a static scale has at least one value, other states have none;
    * (C2) every value is positive, finite and normal in f32;
    * (C3) the states `checkpoint`, and the provenances `checkpoint`,
      `duplicate` and `maximum`, name a key; `dynamic`, `default` and
      `override` do not.
  }];
  let parameters = (ins
    EnumParameter<KVCache_ScaleState>:$state,
    "::mlir::DenseF32ArrayAttr":$values,
    EnumParameter<KVCache_Provenance>:$provenance,
    "::mlir::StringAttr":$key
  );
  let builders = [
    AttrBuilder<(ins), [{
      return $_get($_ctxt, ScaleState::Dynamic, DenseF32ArrayAttr::get($_ctxt, {}), Provenance::Default, StringAttr::get($_ctxt));
    }], "ScaleAttr">
  ];
  let extraClassDeclaration = [{
    bool isDynamic() const { return getState() == ScaleState::Dynamic; }
    bool isStatic() const { return getState() == ScaleState::Static; }
    /// The value of a static per-tensor scale.
    float getValue() const { return getValues()[0]; }
    static ScaleAttr getCheckpoint(::mlir::MLIRContext *context, ::llvm::StringRef key);
    static ScaleAttr getStatic(::mlir::MLIRContext *context, ::llvm::ArrayRef<float> values,
                               Provenance provenance, ::llvm::StringRef key = "");
    /// Print and parse what stands between the angle brackets, and after the
    /// type in `kvcache.scale_buffer`.
    void printBody(::mlir::AsmPrinter &printer) const;
    static ::mlir::FailureOr<ScaleAttr> parseBody(::mlir::AsmParser &parser);
  }];
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def KVCache_CacheType : TypeDef<KVCache_Dialect, "Cache"> {
  let mnemonic = "cache";
  let summary = "handle to one layer's cache";
  let description = [{
    `!kvcache.cache<H x D x T>`: `H` KV heads of `D` elements of type `T`. Ops
    take a handle, which comes from `kvcache.get_cache` (by name) or from
    `kvcache.view_cache` (from buffers).

    `!kvcache.cache<H x D | E x T>` is a cache whose values have a head dim `E`
    of their own, other than the `D` of keys and queries; outputs of attention
    have `E` elements a head.

    `!kvcache.cache<latent L + R x T>` is the cache of multi-head latent
    attention (MLA): one row a token, `L` latent elements and then `R` rotary
    ones, that all query heads share. The row is the key, its latent part the
    value. It counts as one KV head of `L + R` elements.

    The element type `fp8_ds_mla` of a latent cache (`i8` to builders) stands
    for rows of `L + 4 * L / 128 + 2 * R` bytes, 656 for 512 + 64:

    | bytes | what |
    |---|---|
    | `L` | latent codes, f8E4M3FN |
    | `4 * L / 128` | one f32 scale for each 128 codes: their largest magnitude / 448, at least 2^-126; the write computes it |
    | `2 * R` | the rotary part in bf16 |

    Constraints:

    * (C1) the number of KV heads and the head dims are positive;
    * (C2) the element type is f8E4M3FN, f8E5M2, f8E4M3FNUZ, f16, bf16 or f32,
      or, of a latent cache, fp8_ds_mla;
    * (C3) a latent cache has one KV head, and its latent and rotary parts have
      at least one element; its latent part is the head dim of its values;
    * (C4) with fp8_ds_mla the latent part is a multiple of 128.
  }];
  let parameters = (ins
    "int64_t":$numHeads,
    "int64_t":$headDim,
    "::mlir::Type":$elementType,
    "int64_t":$ropeDim,
    "int64_t":$vHeadDim
  );
  let builders = [
    TypeBuilder<(ins "int64_t":$numHeads, "int64_t":$headDim, "::mlir::Type":$elementType), [{
      return $_get($_ctxt, numHeads, headDim, elementType, int64_t(0), headDim);
    }]>,
    TypeBuilder<(ins "int64_t":$numHeads, "int64_t":$headDim, "int64_t":$vHeadDim, "::mlir::Type":$elementType), [{
      return $_get($_ctxt, numHeads, headDim, elementType, int64_t(0), vHeadDim);
    }]>
  ];
  let extraClassDeclaration = [{
    /// The cache of MLA with rows of `latentDim` + `ropeDim` elements.
    static CacheType getLatent(::mlir::MLIRContext *context, int64_t latentDim,
                               int64_t ropeDim, ::mlir::Type elementType) {
      return get(context, 1, latentDim + ropeDim, elementType, ropeDim, latentDim);
    }
    /// The same cache with other elements.
    CacheType withElementType(::mlir::Type elementType) const {
      return get(getContext(), getNumHeads(), getHeadDim(), elementType, getRopeDim(), getVHeadDim());
    }
    /// The same cache with another number of KV heads.
    CacheType withNumHeads(int64_t numHeads) const {
      return get(getContext(), numHeads, getHeadDim(), getElementType(), getRopeDim(), getVHeadDim());
    }
    /// One row is both key and value.
    bool isLatent() const { return getRopeDim() != 0; }
    /// Values have another head dim than keys: V has pages of a shape of its own.
    bool hasOwnVHeadDim() const { return !isLatent() && getVHeadDim() != getHeadDim(); }
    /// Elements of a latent row in front of its rotary part.
    int64_t getLatentDim() const { return getHeadDim() - getRopeDim(); }
    /// Elements of a token's key and value in a graph; of a latent cache these
    /// are the two parts of its row.
    int64_t getKeyWidth() const { return isLatent() ? getLatentDim() : getNumHeads() * getHeadDim(); }
    int64_t getValueWidth() const { return isLatent() ? getRopeDim() : getNumHeads() * getVHeadDim(); }
    /// Rows hold their own scales, in the format fp8_ds_mla.
    bool isTileScaled() const { return getElementType().isInteger(8); }
    /// Latent codes that share one scale in fp8_ds_mla rows.
    static constexpr int64_t kTileSize = 128;
    /// Bytes of an fp8_ds_mla row in front of its scales, and of its rotary
    /// part.
    int64_t getTileScalesOffset() const { return getLatentDim(); }
    int64_t getRotaryOffset() const {
      return getTileScalesOffset() + 4 * (getLatentDim() / kTileSize);
    }
    /// Elements of a page of K, or of V, for one token and head: the head dim,
    /// or the bytes of an fp8_ds_mla row.
    int64_t getRowWidth(bool ofV = false) const {
      return isTileScaled() ? getRotaryOffset() + 2 * getRopeDim()
             : ofV && !isLatent() ? getVHeadDim() : getHeadDim();
    }
    /// An 8-bit float element type, whose values are scaled by the cache's
    /// scales.
    bool isQuantized() const;
    /// Print and parse `H x D x T`, `H x D | E x T` or `latent L + R x T`,
    /// without the angle brackets.
    void printShape(::mlir::AsmPrinter &printer) const;
    static ::mlir::FailureOr<CacheType> parseShape(::mlir::AsmParser &parser);
  }];
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

#endif // KVCACHE_IR_KVCACHEATTRIBUTES_TD
