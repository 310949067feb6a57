//===- Passes.td - Conversion passes of kvcache -----*- tablegen -*-===//

#ifndef KVCACHE_CONVERSION_PASSES_TD
#define KVCACHE_CONVERSION_PASSES_TD

include "mlir/Pass/PassBase.td"

def CachesToArguments : Pass<"kvcache-caches-to-arguments", "::mlir::ModuleOp"> {
  let summary = "make the buffers of caches arguments of the functions that use them";
  let description = [{
    For embedders who run functions themselves: every `kvcache.get_cache` in a
    `func.func` becomes a `kvcache.view_cache` of buffers that the function
    takes as new arguments, behind those that it has:

    * for each cache (in the order of declaration) its K and V pages,
      `memref<num_pages x page_size x KV heads x head dim>` in this logical
      order, whatever the layout; the layout is in the strides. The offset is
      dynamic, so that V of a packed cache can be a view into the pages of K;
    * for each group of these caches the page table, lengths, query starts and
      slots.

    Sizes are the group's capacities where it has them, else dynamic. Each new
    argument has a `kvcache.name` (`layer0.k_cache`, `layer0.v_cache`,
    `page_table`, `lengths`, `query_start`, `slot_mapping`; the last four with
    the group in front, `full.page_table`, when the module has several groups)
    and a `kvcache.role`.

    Functions that call such a function take the same buffers and hand them on.
    A function whose symbol is used by anything but `func.call` is refused, as
    is a handle outside of a function.

    Before:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.000000e+00 from default
    kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    func.func @main(%k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>) {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      kvcache.write %k, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
      return
    }
    ```

    After:

    ```mlir
    func.func @main(%arg0: tensor<?x2x64xbf16>, %arg1: tensor<?x2x64xbf16>,
        %arg2: memref<?x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.k_cache", kvcache.role = #kvcache<role cache>},
        %arg3: memref<?x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.v_cache", kvcache.role = #kvcache<role cache>},
        %arg4: memref<?x?xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
        %arg5: memref<?xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
        %arg6: memref<?xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
        %arg7: memref<?xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>}) {
      %0 = kvcache.view_cache @layer0 pages(%arg2, %arg3) page_table(%arg4) lengths(%arg5) query_start(%arg6) slots(%arg7) : ... -> <2 x 64 x f8E4M3FN>
      kvcache.write %arg0, %arg1 to %0 : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, <2 x 64 x f8E4M3FN>
      return
    }
    ```
  }];
  let dependentDialects = ["::mlir::kvcache::KVCacheDialect"];
  let statistics = [
    Statistic<"numFunctions", "functions", "functions whose signature grew">,
    Statistic<"numCalls", "calls", "calls that hand buffers on">
  ];
}

def ConvertKVCacheToReference : Pass<"convert-kvcache-to-reference", "::mlir::ModuleOp"> {
  let summary = "lower cache ops to plain loops: their executable definition";
  let description = [{
    Lowers writes, attentions, `merge_states`, `copy_pages`, `quantize`,
    `dequantize` and `load_scale` to scf, arith, math, memref and (elementwise ops) linalg, and
    removes handles and declarations. Speed does not matter here; every other
    implementation is compared with this one.

    * Attention is computed in f64: scores, a softmax in two passes (maximum,
      then sum), and the weighted sum of V. Scales multiply as the op says.
      Each output element is rounded once, to nearest even, to its type; the
      LSE to f32.
    * A write divides in f32 by the scale, clamps with `maximumf`/`minimumf`,
      which keep NaN, and rounds to nearest even. Rows that have the element
      type of an unquantized cache are copied bit for bit.
    * Conversions from 8-bit floats and to 8-bit and 16-bit floats are functions
      of integer arithmetic (`@kvcache.widen.TYPE`, `@kvcache.round.TYPE`),
      exact for every code and every double: upstream lowers no 8-bit
      conversion, and rounds f64 to 16 bits twice. NaN becomes the code that
      PTX `cvt` writes: 0x7F (0x80 for f8E4M3FNUZ), 0x7FFF in 16 bits.

    Handles must come from `kvcache.view_cache` (run
    `kvcache-caches-to-arguments` first). Tensors are read through
    `bufferization.to_buffer`; results are fresh buffers that start as copies
    of `outs`, so rows behind the batch stay as they are. Memrefs are used
    directly. Then upstream's CPU pipeline takes on, starting with
    `one-shot-bufferize`.

    Refused, at the op: a scale that is not static, an attention without
    `softmax_scale`, `calculate_scales`, and programs, which are lowered to launches.

    Example:

    ```mlir
    func.func @quantize(%x: tensor<?x64xbf16>, %s: f32) -> tensor<?x64xf8E4M3FN> {
      %y = kvcache.quantize %x by %s : tensor<?x64xbf16> to tensor<?x64xf8E4M3FN>
      return %y : tensor<?x64xf8E4M3FN>
    }
    ```
  }];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::bufferization::BufferizationDialect", "::mlir::func::FuncDialect",
    "::mlir::linalg::LinalgDialect", "::mlir::math::MathDialect", "::mlir::memref::MemRefDialect",
    "::mlir::scf::SCFDialect", "::mlir::tensor::TensorDialect"
  ];
  let statistics = [
    Statistic<"numOps", "ops", "ops of the dialect lowered or removed">
  ];
}

def SelectKernels : Pass<"kvcache-select-kernels", "::mlir::ModuleOp"> {
  let summary = "turn the cache ops of programs into launches of kernels";
  let description = [{
    Each op of the dialect in a `kvcache.program` becomes a `kvcache.launch`. Grids, splits and workspaces come from the capacities of
    the cache group; nothing depends on live data. The rules and their constants
    are in `kernels/Geometry.h`.

    Scales become launch constants, folded in double precision and rounded once:
    `softmax_scale * k_scale * log2(e)` and `v_scale` for attention, `k_scale`
    and `v_scale` for writes. Layers that differ only in their values share one
    kernel. A remark says which variant was chosen and why.

    Workspaces become arguments of the program, one pair for each kernel.

    Window, soft cap, scales for each KV head and caches of f16 and bf16 (no
    scale is applied to them) are variants of the same kernels. With more tokens
    than sequences, rows of a sequence share the loads of K and V in one CTA.

    `math=fp8` chooses fp8-math for decode over FP8 caches: queries become e4m3
    with a power of two for each row (FP8 queries stay as they are), and
    probabilities e4m3, so that the tensor core multiplies the codes. f16-math,
    the default, converts codes exactly. Layers whose cache is not quantized, and
    the kernels of prefill and of MLA, take f16-math under `math=fp8`, too, with
    a warning. Where the chip has no products of e4m3 (sm_80, sm_86), or emulates
    them by more instructions than f16-math takes (sm_90, sm_100), it is refused.

    `tune` sets what the cost model would choose: tokens of a tile, stages of a
    warp's ring, unrolling of the main loop (1, or the stages), query rows of a
    CTA, splits of a context. What no kernel has is refused with the reason.

    Refused, at the op and with what would work: caches other than f8E4M3FN,
    f8E5M2, f16 and bf16, scales without a value, head dims other than 64, 80,
    96, 112, 128, 192 and 256, more than 128 query heads on a KV head, queries
    of another type than a cache that is not quantized, missing capacities, a
    folded factor that is not a normal f32.

    Before:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.230000e-02 from checkpoint "model.layers.0.self_attn.k_proj.k_scale"
    kvcache.scale_buffer @layer0.v : f32 = 3.450000e-02 from checkpoint "model.layers.0.self_attn.v_proj.v_scale"
    kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2, max_sequences = 2, max_tokens = 8, num_pages = 7}
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
    kvcache.program @kvcache.main(
        %k: memref<?x2x64xbf16> {kvcache.name = "layer0.key", kvcache.role = #kvcache<role activation>},
        %v: memref<?x2x64xbf16> {kvcache.name = "layer0.value", kvcache.role = #kvcache<role activation>},
        %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.k_cache", kvcache.role = #kvcache<role cache>},
        %vc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.v_cache", kvcache.role = #kvcache<role cache>},
        %table: memref<2x2xi32> {kvcache.name = "page_table", kvcache.role = #kvcache<role page_table>},
        %lengths: memref<2xi32> {kvcache.name = "lengths", kvcache.role = #kvcache<role lengths>},
        %start: memref<3xi32> {kvcache.name = "query_start", kvcache.role = #kvcache<role query_start>},
        %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>}) {
      kvcache.segment @layer0 {
        %c = kvcache.view_cache @layer0 pages(%kc, %vc) page_table(%table) lengths(%lengths) query_start(%start) slots(%slots)
          : memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>,
            memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
        kvcache.write %k, %v to %c : memref<?x2x64xbf16>, memref<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
      }
    }
    ```

    After, with `target=sm_80`:

    ```mlir
    kvcache.segment @layer0 {
      kvcache.launch @write_bf16_e4m3_h2_d64_p16_... of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0 args(%arg0, %arg1, %arg2, %arg3, %arg7 : ...)
        constants [1.230000e-02 : f32, 3.450000e-02 : f32, 8 : i32, 112] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
        structure [80 : i32, ...] layer "layer0"
    }
    ```
  }];
  let options = [
    Option<"target", "target", "std::string", "\"sm_90\"", "Chip to select kernels for, such as sm_80 or sm_90">,
    Option<"math", "math", "std::string", "\"f16\"", "Numerics of decode attention: f16, or fp8 (Q and P in e4m3) on sm_89 and sm_120">,
    ListOption<"tune", "tune", "std::string", "Choices of decode kernels, instead of the cost model's: tile=N, stages=N, unroll=N, rows=N, splits=N">,
    Option<"runtimeStrides", "runtime-strides", "bool", "false",
           "Strides of pages are constants of the launch, which the runtime takes from the buffer that is bound">
  ];
  let statistics = [
    Statistic<"numLaunches", "launches", "launches selected">
  ];
  let dependentDialects = ["::mlir::kvcache::KVCacheDialect"];
}

def ConvertKVCacheToNVVM : Pass<"convert-kvcache-to-nvvm", "::mlir::ModuleOp"> {
  let summary = "turn launches into gpu.launch_func and a gpu.module";
  let description = [{
    Every distinct kernel becomes an `llvm.func` in `@kvcache_kernels` that
    calls one function of the device library with its arguments and its
    structural constants. The `#nvvm.target` of the module links the library, so
    that upstream's `gpu-module-to-binary` specialises and compiles it. The
    launches become `gpu.launch_func`.

    Each segment becomes the body of the private function that stands for it
    (`@kvcache.main.layer0`), or of a new one. Behind its activations it takes
    the other buffers that it uses, and so do the functions that call it; the
    attribute `kvcache_buffers` names them in order, as a manifest does.
    Programs and declarations go: what is left is stock IR, which upstream's
    `gpu-to-llvm` takes on. Strings in `kvcache_buffers` need no dialect.

    Refused: a launch of a function that the library does not have, or with
    another number of buffers or constants than the function takes.

    Before:

    ```mlir
    kvcache.program @kvcache.main(
        %k: memref<8x2x64xbf16> {kvcache.name = "key", kvcache.role = #kvcache<role activation>},
        %v: memref<8x2x64xbf16> {kvcache.name = "value", kvcache.role = #kvcache<role activation>},
        %kc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.k_cache", kvcache.role = #kvcache<role cache>},
        %vc: memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>> {kvcache.name = "layer0.v_cache", kvcache.role = #kvcache<role cache>},
        %slots: memref<8xi64> {kvcache.name = "slot_mapping", kvcache.role = #kvcache<role slots>}) {
      kvcache.segment @layer0 {
        kvcache.launch @write_example of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
          args(%k, %v, %kc, %vc, %slots : memref<8x2x64xbf16>, memref<8x2x64xbf16>,
               memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<7x16x2x64xf8E4M3FN, strided<[2048, 128, 64, 1], offset: ?>>, memref<8xi64>)
          constants [1.230000e-02 : f32, 3.450000e-02 : f32, 8 : i32, 112] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
          structure [80 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048, 128 : i32, 64 : i32, 2048, 128 : i32, 64 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32]
      }
    }
    ```

    After, with `target=sm_80 kernel-library=kvcache_kernels.bc`:

    ```mlir
    gpu.module @kvcache_kernels [#nvvm.target<... chip = "sm_80", ... link = ["kvcache_kernels.bc"]>] {
      llvm.func @kvcache_write(!llvm.ptr, ..., f32, f32, i32, i64, ...)
      llvm.func @write_example(%arg0: !llvm.ptr<1>, ...) attributes {gpu.kernel, nvvm.kernel, nvvm.reqntid = array<i32: 128, 1, 1>} {
        ...
        llvm.call @kvcache_write(...) : ...
        llvm.return
      }
    }
    func.func @kvcache.main.layer0(%arg0: memref<8x2x64xbf16>, %arg1: memref<8x2x64xbf16>, %arg2: ...)
        attributes {kvcache_buffers = ["layer0.k_cache", "layer0.v_cache", "slot_mapping"]...} {
      ...
      gpu.launch_func @kvcache_kernels::@write_example blocks in (...) threads in (...) args(...)
      return
    }
    ```
  }];
  let options = [
    Option<"target", "target", "std::string", "\"sm_90\"", "Chip of the gpu.module, such as sm_80 or sm_90">,
    Option<"kernelLibrary", "kernel-library", "std::string", "\"\"", "Bitcode of the device library">
  ];
  let statistics = [
    Statistic<"numKernels", "kernels", "distinct kernels">
  ];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::func::FuncDialect", "::mlir::gpu::GPUDialect", "::mlir::LLVM::LLVMDialect",
    "::mlir::memref::MemRefDialect", "::mlir::NVVM::NVVMDialect"
  ];
}

def ConvertArithF8ToNVVM : Pass<"convert-arith-f8-to-nvvm", "::mlir::gpu::GPUModuleOp"> {
  let summary = "lower arith conversions of 8-bit floats for the device";
  let description = [{
    `arith.extf` and `arith.truncf` between f8E4M3FN or f8E5M2 and f16, bf16,
    f32 or f64, on scalars and vectors of any shape. Upstream's
    `convert-gpu-to-nvvm` leaves them behind without a word.

    * Widening is exact for all 256 codes; NaN stays NaN.
    * Narrowing rounds once, to nearest even (also from f64), and saturates:
      what is larger than the largest finite value, infinities included, becomes
      the largest finite value. NaN becomes 0x7F. This is what PTX `cvt` with
      `satfinite` does and what `kvcache.quantize` says; the constant folder of
      `arith.truncf` differs where it overflows (it gives NaN or infinity).

    When every `#nvvm.target` of the module has `cvt` for 8-bit floats (sm_90 and
    later; sm_89 with `features = "+ptx81"`), pairs are converted by `cvt`; else
    by integer code, which gives the same codes on sm_80. Without targets the
    option `target` names the chip.

    Refused, at the op: other small floats, tensors, scalable vectors, rounding
    other than to nearest even, and any arithmetic in 8 bits that is left
    (`arith.addf`, `arith.cmpf`, reductions and so on).

    From a kernel to PTX, together with upstream:

    ```
    builtin.module(nvvm-attach-target{chip=sm_90},gpu.module(convert-arith-f8-to-nvvm,convert-vector-to-llvm,convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=true},canonicalize,reconcile-unrealized-casts),gpu-module-to-binary{format=isa})
    ```

    Before:

    ```mlir
    gpu.module @kernels {
      gpu.func @narrow(%x: f32, %out: memref<1xf8E4M3FN>) kernel {
        %c0 = arith.constant 0 : index
        %y = arith.truncf %x : f32 to f8E4M3FN
        memref.store %y, %out[%c0] : memref<1xf8E4M3FN>
        gpu.return
      }
    }
    ```

    After, with `target=sm_90`:

    ```mlir
    gpu.func @narrow(%arg0: f32, %arg1: memref<1xf8E4M3FN>) kernel {
      ...
      %... = nvvm.convert.f32x2.to.f8x2 %cst, %arg0 {rnd = #nvvm.fp_rnd_mode<rn>, sat = #nvvm.sat_mode<satfinite>} : vector<2xi8>(f8E4M3FN)
      ...
      %... = arith.bitcast %... : i8 to f8E4M3FN
      memref.store %..., %arg1[%c0] : memref<1xf8E4M3FN>
      gpu.return
    }
    ```
  }];
  let options = [
    Option<"target", "target", "std::string", "\"\"",
           "Chip, such as sm_80 or sm_90 (default: the targets of the gpu.module; without any, code for all chips)">
  ];
  let statistics = [
    Statistic<"numConversions", "conversions", "conversions lowered">
  ];
  let dependentDialects = [
    "::mlir::arith::ArithDialect", "::mlir::LLVM::LLVMDialect", "::mlir::NVVM::NVVMDialect",
    "::mlir::vector::VectorDialect"
  ];
}

#endif // KVCACHE_CONVERSION_PASSES_TD
