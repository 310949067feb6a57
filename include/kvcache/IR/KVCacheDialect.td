//===- KVCacheDialect.td - The kvcache dialect ---------------*- tablegen -*-===//

#ifndef KVCACHE_IR_KVCACHEDIALECT_TD
#define KVCACHE_IR_KVCACHEDIALECT_TD

include "mlir/IR/OpBase.td"

def KVCache_Dialect : Dialect {
  let name = "kvcache";
  let cppNamespace = "::mlir::kvcache";
  let summary = "Paged, quantized key-value caches of attention layers";
  let description = [{
    The dialect describes the KV caches of a model: where each layer keeps its
    keys and values, in which element type, and with which scales they are
    quantized.

    A *cache* is a symbol. It owns its layout and its scales, so an op that
    writes it and an op that reads it cannot disagree about either. A *scale*
    is a symbol too, and has a life cycle that passes only move forward:

        dynamic  ->  checkpoint "key"  ->  a value with its provenance

    All scales are dequantization multipliers: a stored code is
    `quantize(x / s)`, and its value is `code * s`.

    Example:

    ```mlir
    kvcache.scale_buffer @layer0.k : f32 = 1.230000e-02 from checkpoint "model.layers.0.self_attn.k_proj.k_scale"
    kvcache.scale_buffer @layer0.v : f32 = 3.450000e-02 from checkpoint "model.layers.0.self_attn.v_proj.v_scale"
    kvcache.cache_group @full page_size 16
    kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

    func.func @layer(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>,
                     %out: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
      %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x f8E4M3FN>
      kvcache.write %k, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN>
      %o = kvcache.paged_attention %q over %c outs(%out) {softmax_scale = 1.250000e-01 : f64}
        : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x f8E4M3FN> -> tensor<?x4x64xbf16>
      return %o : tensor<?x4x64xbf16>
    }
    ```
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
}

#endif // KVCACHE_IR_KVCACHEDIALECT_TD
