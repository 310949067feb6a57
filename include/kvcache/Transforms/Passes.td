//===- Passes.td - Transforms passes of kvcache -----*- tablegen -*-===//

#ifndef KVCACHE_TRANSFORMS_PASSES_TD
#define KVCACHE_TRANSFORMS_PASSES_TD

include "mlir/Pass/PassBase.td"

def ResolveCacheTypes : Pass<"kvcache-resolve-cache-types", "::mlir::ModuleOp"> {
  let summary = "decide the element type of each cache";
  let description = [{
    Sets the element type of each `kvcache.cache` and of every handle to it. In
    this order: `kv-cache-dtype` unless it is `auto`; the graph's own word
    (`graph_dtype`) unless it is `auto`; the KV algorithm that the checkpoint's
    configuration declares (ModelOpt, compressed-tensors); else the type that
    the cache has.

    Layers of `skip-layers` are `auto`: an index in decimal, or the word
    `sliding_window` for every layer whose attention has a `window` (which comes
    from the graph, or from `kvcache-apply-model-config` when that has run
    before).

    Buffers have the type of their cache, so the pass comes before anything that
    makes `kvcache.view_cache`. A conflict, a word that is not supported and a
    handle that leaves the dialect (whose type could not follow) are errors.

    Before:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer0.v : f32 dynamic
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
    func.func @main(%k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
      kvcache.write %k, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
      return
    }
    ```

    After, with `kv-cache-dtype=fp8`:

    ```mlir
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    ...
      %0 = kvcache.get_cache @layer0 : <2 x 64 x f8E4M3FN>
      kvcache.write %arg0, %arg1 to %0 : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, <2 x 64 x f8E4M3FN>
    ```
  }];
  let options = [
    Option<"checkpoint", "checkpoint", "std::string", "\"\"",
           "Folder of the model, or a .safetensors file; none: only options and graph decide">,
    Option<"kvCacheDtype", "kv-cache-dtype", "std::string", "\"auto\"",
           "Element type of the caches: auto, float16, bfloat16, fp8 (= fp8_e4m3), fp8_e5m2, fp8_e4m3fnuz, fp8_per_token_head, and of MLA fp8_ds_mla">,
    Option<"tokenScales", "token-scales", "std::string", "\"\"",
           "Where caches of fp8_per_token_head keep the scales of tokens: side (in tensors of their own) or inline (behind the codes of each row); none: as the cache says, else side">,
    ListOption<"skipLayers", "skip-layers", "std::string",
               "Layers whose cache is not quantized: indices, or sliding_window">
  ];
  let statistics = [
    Statistic<"numQuantized", "quantized", "Caches of a quantized element type">,
    Statistic<"numUnquantized", "unquantized", "Caches of another element type">,
    Statistic<"numChanged", "changed", "Caches whose element type this run has changed">
  ];
}

def ApplyModelConfig : Pass<"kvcache-apply-model-config", "::mlir::ModuleOp"> {
  let summary = "softmax scale, soft cap, window, sinks and slopes from the model";
  let description = [{
    Serving ops carry no softmax scale, soft cap and window: the layer knew
    them. The pass sets the attributes of each `kvcache.paged_attention` from
    its options, else leaves the attribute that the graph has, else takes the
    value from the checkpoint's `config.json` by the rules of the model's
    family. A remark names every value that comes from the config. Where the
    config asks for attention sinks, they become a constant operand, from the
    checkpoint's tensor `<module>.sinks` or `<module>.attention_sink_bias`.
    Where it asks for ALiBi, the slopes become one, by the formula of Press,
    Smith and Lewis (ICLR 2022, arXiv 2108.12409): of 2^n heads 2^(-8 i / 2^n),
    `i` from 1 on, and of more those of the next power of two in between. The 8
    is MPT's `alibi_bias_max`; Falcon's slopes are times the softmax scale.
    Operands that the graph has stay as they are.

    It is an error if nothing gives the softmax scale; if the config contradicts
    the graph's heads or head dim, or itself (ALiBi beside another kind of
    position); if it asks for what the ops cannot do (a cache shared with another
    layer).

    Before:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer0.v : f32 dynamic
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
    func.func @main(%q: tensor<?x4x64xbf16>, %out: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
      %o = kvcache.paged_attention %q over %c outs(%out) : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<?x4x64xbf16>
      return %o : tensor<?x4x64xbf16>
    }
    ```

    After, with `checkpoint=test/Inputs/checkpoints/modelopt_fp8` (a Llama of head dim 64):

    ```mlir
    %1 = kvcache.paged_attention %arg0 over %0 outs(%arg1) {kvcache.softmax_scale_from = "config.json: head_dim", softmax_scale = 1.250000e-01 : f64} : ...
    ```
  }];
  let options = [
    Option<"checkpoint", "checkpoint", "std::string", "\"\"",
           "Folder of the model, or a .safetensors file beside its config.json">,
    Option<"softmaxScale", "softmax-scale", "double", "0.0",
           "Softmax scale of every layer (0: not given)">,
    Option<"softCap", "soft-cap", "double", "-1.0",
           "Soft cap of every layer; 0: none (negative: not given)">,
    Option<"window", "window", "int64_t", "-1",
           "Keys that a query sees in every layer, its own included; 0: all (negative: not given)">,
    Option<"tpSize", "tp-size", "int64_t", "1",
           "Tensor parallel ranks, of which the graph is one; heads of the config are those of all ranks">,
    Option<"tpRank", "tp-rank", "int64_t", "0",
           "The rank that the graph is for, whose heads' ALiBi slopes it takes">
  ];
  let statistics = [
    Statistic<"numApplied", "applied", "Attention ops whose attributes this run has changed">
  ];
  let dependentDialects = ["::mlir::arith::ArithDialect"];
}

def FoldCheckpointScales : Pass<"kvcache-fold-checkpoint-scales", "::mlir::ModuleOp"> {
  let summary = "scales become constants, with the place they come from";
  let description = [{
    Resolves the K and V scales of all layers against the checkpoint at once and
    makes every `kvcache.scale_buffer` static: a value of the checkpoint, a
    duplicate of the layer's other scale, a default of 1.0, or an override of
    the user. `kvcache.load_scale` becomes an `arith.constant`. A buffer that is
    static already keeps its value.

    A layer is matched to checkpoint names by its exact attention module, else
    by a unique suffix. Under `strict`, values that the serving stacks repair
    silently are errors; `compatible` repairs as they do and warns. A cache that
    is not quantized uses no scale: its buffers become 1.0, whatever the
    checkpoint holds.

    With `names-only`, scales that the checkpoint gives stop at `checkpoint
    "key"`; scales without a key (defaults, overrides) become static. A later
    run without the option reads the values.

    Errors and warnings are at the cache of their layer.

    Before:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer0.v : f32 dynamic
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @main() -> f32 {
      %s = kvcache.load_scale @layer0.k : f32
      return %s : f32
    }
    ```

    After, with `checkpoint=test/Inputs/checkpoints/modelopt_fp8`:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.230000e-02 from checkpoint "model.layers.0.self_attn.k_proj.k_scale"
    kvcache.scale_buffer @layer0.v : f32 = 3.450000e-02 from checkpoint "model.layers.0.self_attn.v_proj.v_scale"
    ...
    func.func @main() -> f32 {
      %cst = arith.constant 1.230000e-02 : f32
      return %cst : f32
    }
    ```
  }];
  let options = [
    Option<"checkpoint", "checkpoint", "std::string", "\"\"",
           "Folder of the model, or a .safetensors file; none: every scale that is not overridden is 1.0">,
    Option<"scalePolicy", "scale-policy", "std::string", "\"strict\"",
           "strict: doubtful scales are errors; compatible: what the reference serving stack makes of them">,
    ListOption<"scale", "scale", "std::string",
               "Overrides LAYER.ROLE=VALUE; LAYER is a layer's name, its attention module or its index; ROLE is q, k, v, prob or o">,
    ListOption<"scaleOverlay", "scale-overlay", "std::string",
               "Scale-only files, .safetensors or JSON; later ones win">,
    Option<"namesOnly", "names-only", "bool", "false",
           "Bind scales to checkpoint keys without reading the values">,
    Option<"roundScalesTo", "round-scales-to", "std::string", "\"\"",
           "Round loaded scales to bf16 or f16 first, as the reference serving stack does">,
    Option<"requireCalibrated", "require-calibrated", "bool", "false",
           "A K or V scale of a quantized cache that nothing gives is an error, not 1.0">,
    Option<"tpSize", "tp-size", "int64_t", "1",
           "Tensor parallel ranks; scales per head of the checkpoint are those of all ranks">,
    Option<"tpRank", "tp-rank", "int64_t", "0",
           "The rank that the graph is for">
  ];
  let statistics = [
    Statistic<"numBound", "bound", "Scales that the checkpoint gives">,
    Statistic<"numDefaulted", "defaulted", "Scales of quantized caches that are 1.0 by default">,
    Statistic<"numDuplicated", "duplicated", "Scales taken from the layer's other scale">,
    Statistic<"numOverridden", "overridden", "Scales given by the user">,
    Statistic<"numIgnored", "ignored", "Scale-like tensors of the checkpoint that nothing uses">,
    Statistic<"numRefused", "refused", "Errors found while resolving scales">
  ];
  let dependentDialects = ["::mlir::arith::ArithDialect"];
}

def PartitionCaches : Pass<"kvcache-partition-caches", "::mlir::ModuleOp"> {
  let summary = "make the declarations of caches those of one rank";
  let description = [{
    Follows upstream's `sharding-propagation` and `shard-partition`, which split
    the heads of writes and attentions over the ranks of a `shard.grid` and
    leave handles of one shard, `kvcache.get_cache @layer0 shards 2`. Each cache
    gets the KV heads that a rank holds, and `shards` moves from the handles to
    the declaration, where `kvcache-fold-checkpoint-scales` compares it with
    `tp-size`. Page tables, lengths and slots are the same on every rank.

    It is an error if functions split a cache differently, or if a scale of all
    KV heads has its values already: it is different on each rank.

    Before:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer0.v : f32 dynamic
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
    func.func @main(%k: tensor<?x1x64xbf16>, %v: tensor<?x1x64xbf16>) {
      %c = kvcache.get_cache @layer0 shards 2 : !kvcache.cache<1 x 64 x bf16>
      kvcache.write %k, %v to %c : tensor<?x1x64xbf16>, tensor<?x1x64xbf16>, !kvcache.cache<1 x 64 x bf16>
      return
    }
    ```

    After:

    ```mlir
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 1 x 64 x bf16 scales(@layer0.k, @layer0.v) {shards = 2 : i64}
    func.func @main(%arg0: tensor<?x1x64xbf16>, %arg1: tensor<?x1x64xbf16>) {
      %0 = kvcache.get_cache @layer0 : <1 x 64 x bf16>
      kvcache.write %arg0, %arg1 to %0 : tensor<?x1x64xbf16>, tensor<?x1x64xbf16>, <1 x 64 x bf16>
      return
    }
    ```
  }];
  let statistics = [
    Statistic<"numPartitioned", "partitioned", "Caches that became those of one rank">
  ];
}

def DropDynamicScales : Pass<"kvcache-drop-dynamic-scales", "::mlir::ModuleOp"> {
  let summary = "erase the run-time calculation of scales";
  let description = [{
    Comes after `kvcache-fold-checkpoint-scales` and erases whatever is left of
    the old path, in which the first forward pass estimated the scales:

    * `kvcache.calculate_scales`;
    * foreign ops `*.maybe_calc_kv_scales` and `*.calc_kv_scales`, plain, as
      `torch.operator`, as `stablehlo.custom_call` and as calls of declarations;
      uses of their results become uses of their operands;
    * private functions of those names;
    * attributes `calculate_kv_scales`, `calc_kv_scales`, `q_range`, `_q_range`,
      `Q_SCALE_CONSTANT` and so on, with or without a prefix `kvcache.`,
      `vllm.` or `torch.`, at any op, argument or result and in any nested
      dictionary; `kvcache.cudagraph_downgrade`, and with it or with
      `calculate_kv_scales` a `cudagraph_mode = "NONE"`;
    * globals of those names (range buffers, first-step flags) with the ops that
      only read or write them, and branches that nothing is left in;
    * arguments whose name attribute is one of those names, if nothing uses
      them: of functions that nothing in the module calls.

    Each layer that had run-time scales gets one warning: which numbers replace
    them, and how to get calibrated ones. What cannot be removed is an error,
    and so is a scale buffer that is still dynamic.

    Before:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.230000e-02 from checkpoint "model.layers.0.self_attn.k_proj.k_scale"
    kvcache.scale_buffer @layer0.v : f32 = 3.450000e-02 from checkpoint "model.layers.0.self_attn.v_proj.v_scale"
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @main(%q: tensor<?x256xbf16>, %k: tensor<?x128xbf16>, %v: tensor<?x128xbf16>) attributes {vllm.calculate_kv_scales = true} {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      kvcache.calculate_scales %q, %k, %v for %c : tensor<?x256xbf16>, tensor<?x128xbf16>, tensor<?x128xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
      return
    }
    ```

    After:

    ```mlir
    func.func @main(%arg0: tensor<?x256xbf16>, %arg1: tensor<?x128xbf16>, %arg2: tensor<?x128xbf16>) {
      return
    }
    ```
  }];
  let statistics = [
    Statistic<"numOps", "ops", "Ops erased">,
    Statistic<"numAttributes", "attributes", "Attributes removed">,
    Statistic<"numSymbols", "symbols", "Functions and globals erased">,
    Statistic<"numArguments", "arguments", "Arguments erased">
  ];
}

def VerifyStaticScales : Pass<"kvcache-verify-static-scales", "::mlir::ModuleOp"> {
  let summary = "stage gate: every scale is a constant, and nothing computes one";
  let description = [{
    Fails if anything of the old run-time path or any scale that is not static
    is left, and lists all of it, each at its op: scale buffers in the states
    `dynamic` and `checkpoint`, `kvcache.calculate_scales`,
    `kvcache.load_scale`, and names of ops, symbols, attributes and strings
    that belong to that path (see `kvcache-drop-dynamic-scales`). Changes
    nothing.

    Refused:

    ```mlir
    kvcache.cache_group @full page_size 16
    // expected-error @+1 {{illegal where scales are static: @layer0.k is dynamic; run kvcache-fold-checkpoint-scales}}
    kvcache.scale_buffer @layer0.k : f32 dynamic
    kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @main(%q: tensor<?x256xbf16>, %k: tensor<?x128xbf16>, %v: tensor<?x128xbf16>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      // expected-error @+1 {{'kvcache.calculate_scales' calculates scales at run time; run kvcache-drop-dynamic-scales}}
      kvcache.calculate_scales %q, %k, %v for %c : tensor<?x256xbf16>, tensor<?x128xbf16>, tensor<?x128xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
      return
    }
    ```
  }];
  let statistics = [
    Statistic<"numRemainders", "remainders", "Remainders found">
  ];
}

def SortPureOps : Pass<"kvcache-sort-pure-ops", "::mlir::ModuleOp"> {
  let summary = "give ops without effects the one order that their uses imply";
  let description = [{
    In the blocks of functions, ops with memory effects keep their order, and
    every other op moves down to right before the op that needs it first,
    operands from left to right; constants come first. Graphs that differ only
    in the order in which an exporter wrote independent ops become equal, and
    with them what is compiled from them: a graph from which run-time scales
    were dropped, and the same graph exported without them.

    Before:

    ```mlir
    func.func @main() {
      %a = tensor.empty() : tensor<4xf32>
      %b = tensor.empty() : tensor<8xf32>
      "use"(%b) : (tensor<8xf32>) -> ()
      "use"(%a) : (tensor<4xf32>) -> ()
      return
    }
    ```

    After:

    ```mlir
    func.func @main() {
      %0 = tensor.empty() : tensor<8xf32>
      "use"(%0) : (tensor<8xf32>) -> ()
      %1 = tensor.empty() : tensor<4xf32>
      "use"(%1) : (tensor<4xf32>) -> ()
      return
    }
    ```
  }];
  let statistics = [
    Statistic<"numMoved", "moved", "Ops moved">
  ];
}

def FormPrograms : Pass<"kvcache-form-programs", "::mlir::ModuleOp"> {
  let summary = "move cache ops into programs";
  let description = [{
    Each function with cache ops gets a `kvcache.program`, which holds them. The
    function keeps its signature and its foreign ops; a call of a segment takes
    the place of each run of cache ops. Pure ops that stand between two cache
    ops and do not need the first are moved in front of both; any other foreign
    op ends a segment.

    The program's arguments are buffers: activations, caches, and the tables of
    the cache group, sized by the group's capacities. The segment's function,
    `@kvcache.<function>.<segment>`, takes the activations only, as memrefs, and
    is private: whoever runs the function provides it.

    A function of memrefs that holds nothing but cache ops becomes a program of
    one segment, which is one graph.

    With `batch-sizes`, whose largest is the group's `max_sequences`, each
    smaller size N gets a program `@kvcache.<function>.bN` beside: the same
    segments over the same buffers, for batches of up to N sequences. The
    function calls the segments of the largest.

    Refused: cache ops nested in other ops, functions of several blocks, handles
    that come from elsewhere, `calculate_scales`, memrefs of activations that
    are not contiguous; batch sizes for a graph whose number of tokens is
    static, or for a group whose `max_tokens` is no multiple of `max_sequences`.

    Before:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.230000e-02 from checkpoint "model.layers.0.self_attn.k_proj.k_scale"
    kvcache.scale_buffer @layer0.v : f32 = 3.450000e-02 from checkpoint "model.layers.0.self_attn.v_proj.v_scale"
    kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2, max_sequences = 2, max_tokens = 8, num_pages = 7}
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @main(%k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      kvcache.write %k, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
      return
    }
    ```

    After:

    ```mlir
    kvcache.program @kvcache.main(%arg0: memref<7x16x2x64xf8E4M3FN, ...> {kvcache.name = "layer0.k_cache", kvcache.role = #kvcache<role cache>},
        ... %arg6: memref<?x2x64xbf16> {kvcache.name = "layer0.key", kvcache.role = #kvcache<role activation>}, ...) {
      kvcache.segment @layer0 {
        %0 = kvcache.view_cache @layer0 pages(%arg0, %arg1) page_table(%arg2) lengths(%arg3) query_start(%arg4) slots(%arg5) : ...
        kvcache.write %arg6, %arg7 to %0 : memref<?x2x64xbf16>, memref<?x2x64xbf16>, <2 x 64 x f8E4M3FN>
      }
    }
    func.func private @kvcache.main.layer0(memref<?x2x64xbf16>, memref<?x2x64xbf16>) ...
    func.func @main(%arg0: tensor<?x2x64xbf16>, %arg1: tensor<?x2x64xbf16>) {
      %0 = bufferization.to_buffer %arg0 read_only : tensor<?x2x64xbf16> to memref<?x2x64xbf16>
      %1 = bufferization.to_buffer %arg1 read_only : tensor<?x2x64xbf16> to memref<?x2x64xbf16>
      call @kvcache.main.layer0(%0, %1) : (memref<?x2x64xbf16>, memref<?x2x64xbf16>) -> ()
      return
    }
    ```
  }];
  let options = [
    ListOption<"batchSizes", "batch-sizes", "int64_t", "Sizes of batches to form a program for, ascending">
  ];
  let statistics = [
    Statistic<"numPrograms", "programs", "programs formed">,
    Statistic<"numSegments", "segments", "segments in them">
  ];
  let dependentDialects = [
    "::mlir::bufferization::BufferizationDialect", "::mlir::func::FuncDialect",
    "::mlir::kvcache::KVCacheDialect", "::mlir::memref::MemRefDialect", "::mlir::tensor::TensorDialect"
  ];
}

def VerifyCapturable : Pass<"kvcache-verify-capturable", "::mlir::ModuleOp"> {
  let summary = "report everything that keeps a program from being one static graph";
  let description = [{
    Looks at what would be captured: in a function, the ops from the first cache
    op to the last; in a `kvcache.program`, everything. All hazards are reported
    at once, each at its op, with a note on the cause and one on what to do:

    | kind | what it is |
    |---|---|
    | `host-read` | a value of the device is read by the host |
    | `synchronization` | the host waits for the device |
    | `allocation` | memory is allocated or freed |
    | `live-geometry` | grid or shared memory depends on device values or on a dimension that is not known; or the grid or a constant of a `kvcache.launch` is not that of the capacities: it was planned for the lengths of one step |
    | `unbounded` | a capacity is not known |
    | `unstable-address` | a mutated buffer does not stay where it is |
    | `control-flow` | a branch on a device value |
    | `opaque-call` | a call of a function that nobody can look into |
    | `host-scalar` | a scalar of the host that changes between replays |
    | `foreign-op` | an op that another compiler lowers splits the graph |

    Foreign ops split a program into segments, each of which is a graph: a
    remark, or an error with `one-graph`. Writing a cache at a fixed address and
    reading lengths on the device are fine.

    Refused:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.000000e+00 from default
    kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
    kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2, max_sequences = 2, max_tokens = 8, num_pages = 7}
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @main(%k: memref<8x2x64xbf16>, %v: memref<8x2x64xbf16>, %q: memref<8x4x64xbf16>, %o: memref<8x4x64xbf16>, %n: memref<i32>) -> i32 {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      kvcache.write %k, %v to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
      // expected-error @below {{'memref.load' cannot be captured (host-read)}}
      // expected-note @below {{cause: the host reads a value that the device computes}}
      // expected-note @below {{what to do: keep the value on the device: let the kernel that needs it read it}}
      %live = memref.load %n[] : memref<i32>
      kvcache.paged_attention %q over %c outs(%o) {softmax_scale = 1.250000e-01 : f64}
        : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> memref<8x4x64xbf16>
      return %live : i32
    }
    ```
  }];
  let options = [
    Option<"oneGraph", "one-graph", "bool", "false", "A foreign op that splits the graph is an error">
  ];
  let statistics = [
    Statistic<"numHazards", "hazards", "hazards found">,
    Statistic<"numSplits", "splits", "foreign ops that split a graph">
  ];
}

#endif // KVCACHE_TRANSFORMS_PASSES_TD
