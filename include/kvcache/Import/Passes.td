//===- Passes.td - Import passes of kvcache -----*- tablegen -*-===//

#ifndef KVCACHE_IMPORT_PASSES_TD
#define KVCACHE_IMPORT_PASSES_TD

include "mlir/Pass/PassBase.td"

def Import : Pass<"kvcache-import", "::mlir::ModuleOp"> {
  let summary = "turn custom ops of serving stacks into kvcache ops";
  let description = [{
    Each op that the table of ops knows becomes one kvcache op; `op-table` files
    add to the table. Operands are found by the op's `operand_names`, or, for
    ops whose schema is all there is, by position. Function signatures
    (but for MLA) and all other ops stay as they are. The ops may be plain (`"vllm.name"`), calls of
    private declarations that carry `torch.op`, `torch.operator`s,
    `stablehlo.custom_call`s, `stablehlo.composite`s or `onnx.Custom`s; the
    dialects need not be linked. Tensors of torch are cast to builtin ones, and
    outputs that a `torch.operator` writes in place become results.

    | op | becomes |
    |---|---|
    | `vllm.unified_kv_cache_update` | `kvcache.write` |
    | `vllm.unified_attention_with_output` | `kvcache.paged_attention` |
    | `vllm.unified_mla_kv_cache_update` | `kvcache.write_latent` |
    | `vllm.unified_mla_attention_with_output` | `kvcache.mla_attention` between linalg, see below |
    | `_C_cache_ops.reshape_and_cache_flash` | `kvcache.write`; its layer is that of the attention with the same key and value |
    | `_C.static_scaled_fp8_quant` of a query | `kvcache.quantize` by the layer's q scale |
    | `kvcache.write`, `kvcache.paged_attention` (composites) | the op of the name |
    | `vllm.maybe_calc_kv_scales` | `kvcache.calculate_scales`; its results are its operands |

    Each layer name gets a `kvcache.cache` of the element type of its keys, with
    scales that are still `dynamic`: called `layer<N>` where the name has an
    index that no other layer has, else after the layer name. A
    `kv_cache_dtype` of the graph is kept as `graph_dtype`, and `softmax_scale`,
    `soft_cap` and `sliding_window` (keys seen, the query's own included; no
    more than 0: none) as attributes of the attention.

    The result of the cache update only orders the attention after it. After
    import the order is that of memory effects, so the token disappears. This is
    checked: the token may be used by attention ops of the same layer only, the
    update must dominate the attention, and no other update of the layer may
    stand between. Keys and values of the attention must be those that were
    written, because the attention reads the cache.

    With `cache-operands=threaded` ops whose pages and tables are operands become
    `kvcache.with_pages`, so that pages stay values which the graph hands on; the
    cache has the element type and the page size of its pages. Otherwise:

    Graphs that pass caches, slots and scales as arguments keep them, unused,
    with a remark: a function that returns its caches returns what it was given,
    because the declared cache takes their place. A scale whose value a graph
    holds twice, as a tensor and as a float attribute, must be the same.

    FP8 queries are quantized in the graph by `@layer<N>.q`; their codes enter
    the attention exactly, as numbers of the output's type, and the attention
    names the scale in `kvcache.query_scale` until
    `kvcache-fold-checkpoint-scales` multiplies it into the softmax scale.

    A layer that shares the cache of another one has an attention and no cache
    update. With `checkpoint`, the model's config says whose cache it reads (the
    last `num_kv_shared_layers` of Gemma 3n and 4); its own keys and values, if
    the op has any, are not used.

    Attention of an encoder, or of a tower for images or sound, has no cache: by
    its layer's name it is left as it is, with a remark.

    MLA: the serving op takes queries `[tokens, heads, nope + rope]` and returns
    `[tokens, heads * value dim]`; its layer's up-projection is not in the
    graph. The weight `kv_b_proj` `[heads * (nope + value dim), latent]`, one
    for each layer, becomes a new last argument of the function, which carries
    the tensor's name in the checkpoint as `kvcache.weight`, and a remark says
    so. Of each head, the first `nope` rows multiply the query in front of
    `kvcache.mla_attention`, the last `value dim` rows its output: f32 sums,
    each rounded once to the element type of the query. A latent cache has
    layout `nhd`, whatever `kv-layout` says. The function must not be called in
    the module, and the ops must be on tensors.

    Errors: an op of a known family that the table does not have; a missing,
    unknown, repeated or refused operand; a file of ops that does not have its
    format; no layer name, or an opaque one; shapes that contradict
    each other within a layer; FP8 queries by another op; builtin tensors
    that are written in place, and torch's where another view sees it. A graph without such ops is left alone.

    Before:

    ```mlir
    func.func @main(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %out: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
      %t = "vllm.unified_kv_cache_update"(%k, %v) {layer_name = "model.layers.0.self_attn.attn", operand_names = ["key", "value"], mutated = []}
        : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>) -> tensor<0xbf16>
      %o = "vllm.unified_attention_with_output"(%q, %k, %v, %out, %t) {layer_name = "model.layers.0.self_attn.attn",
          operand_names = ["query", "key", "value", "output", "kv_cache_dummy_dep"], mutated = ["output"]}
        : (tensor<?x4x64xbf16>, tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<?x4x64xbf16>, tensor<0xbf16>) -> tensor<?x4x64xbf16>
      return %o : tensor<?x4x64xbf16>
    }
    ```

    After:

    ```mlir
    kvcache.cache_group @full page_size 16
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer0.v : f32 dynamic
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
    func.func @main(%arg0: tensor<?x4x64xbf16>, %arg1: tensor<?x2x64xbf16>, ...
      %0 = kvcache.get_cache @layer0 : <2 x 64 x bf16>
      kvcache.write %arg1, %arg2 to %0 : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, <2 x 64 x bf16>
      %1 = kvcache.paged_attention %arg0 over %0 outs(%arg3) : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<?x4x64xbf16>
      return %1 : tensor<?x4x64xbf16>
    }
    ```
  }];
  let options = [
    ListOption<"opTable", "op-table", "std::string",
               "JSON files with more ops: their names and the roles of their "
               "operands (docs/op-table.md)">,
    Option<"cacheOperands", "cache-operands", "std::string", "\"replaced\"",
           "What becomes of pages and tables that ops have as operands: "
           "replaced (by the declared cache and its group) or threaded (they "
           "stay values, in kvcache.with_pages)">,
    Option<"requireAttention", "require-attention", "bool", "false",
           "A graph without any attention over a cache is an error">,
    Option<"checkpoint", "checkpoint", "std::string", "\"\"",
           "Folder whose config.json says which layers read the cache of another">,
    Option<"pageSize", "page-size", "int64_t", "16",
           "Tokens in a page of the caches; a power of two">,
    Option<"kvLayout", "kv-layout", "std::string", "\"nhd\"",
           "Order of a page's dimensions in memory: nhd, hnd, packed, or strides:PAGE,TOKEN,HEAD in elements">,
    Option<"maxTokens", "max-tokens", "int64_t", "0",
           "Capacity: rows of one step, over all sequences (0: not given)">,
    Option<"maxSequences", "max-sequences", "int64_t", "0",
           "Capacity: sequences of one step (0: not given)">,
    Option<"maxPagesPerSequence", "max-pages-per-sequence", "int64_t", "0",
           "Capacity: pages of one sequence (0: not given)">,
    Option<"numPages", "num-pages", "int64_t", "0",
           "Capacity: pages in the pool (0: not given)">
  ];
  let statistics = [
    Statistic<"numCaches", "caches", "Caches declared">,
    Statistic<"numWrites", "writes", "Cache updates imported">,
    Statistic<"numAttentions", "attentions", "Attention ops imported">,
    Statistic<"numCalculations", "calculations", "Run-time scale calculations imported">
  ];
  let dependentDialects = ["::mlir::kvcache::KVCacheDialect", "::mlir::arith::ArithDialect", "::mlir::linalg::LinalgDialect", "::mlir::tensor::TensorDialect"];
}

#endif // KVCACHE_IMPORT_PASSES_TD
