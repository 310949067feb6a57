// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,FP8
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8},kvcache-resolve-cache-types{kv-cache-dtype=fp8})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,FP8
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_e5m2})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,E5M2
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{checkpoint=%inputs/checkpoints/modelopt_fp8})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,MODELOPT
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{checkpoint=%inputs/checkpoints/modelopt_fp8 kv-cache-dtype=bfloat16})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,BF16
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{checkpoint=%inputs/checkpoints/no_scales})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,AUTO
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8 skip-layers=0,sliding_window})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,SKIP
// RUN: not kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=nvfp4})" 2>&1 | FileCheck %s --check-prefix=NVFP4
// RUN: not kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp7})" 2>&1 | FileCheck %s --check-prefix=FP7
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head})" 2>/dev/null | FileCheck %s --check-prefix=TOKENHEAD
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head token-scales=inline},kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head})" 2>/dev/null | FileCheck %s --check-prefix=INLINE
// RUN: not kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_per_token_head token-scales=outside})" 2>&1 | FileCheck %s --check-prefix=OUTSIDE
// RUN: not kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=int8_per_token_head})" 2>&1 | FileCheck %s --check-prefix=INT8
// RUN: not kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8_ds_mla})" 2>&1 | FileCheck %s --check-prefix=DSMLA
// RUN: not kvcache-opt %s -pass-pipeline="builtin.module(kvcache-resolve-cache-types{checkpoint=%inputs/checkpoints/nowhere})" 2>&1 | FileCheck %s --check-prefix=MISSING

// The user's word wins over the graph's (layer 1: fp8_e5m2), that over the
// checkpoint's. Handles follow their cache, in every function.

// TOKENHEAD: kvcache.cache @layer0 {{.*}} : 2 x 64 x f8E4M3FN {{.*}} token_scales side
// TOKENHEAD: kvcache.cache @layer2 {{.*}} token_scales side
// What the option said before stays.
// INLINE: kvcache.cache @layer0 {{.*}} token_scales inline
// INLINE: kvcache.cache @layer2 {{.*}} token_scales inline
// OUTSIDE: error: token-scales: expected side or inline, but found 'outside'
// CHECK: kvcache.cache @layer0
// FP8-SAME: 2 x 64 x f8E4M3FN
// E5M2-SAME: 2 x 64 x f8E5M2
// MODELOPT-SAME: 2 x 64 x f8E4M3FN
// BF16-SAME: 2 x 64 x bf16
// AUTO-SAME: 2 x 64 x bf16
// SKIP-SAME: 2 x 64 x bf16
// CHECK: kvcache.cache @layer2
// FP8-SAME: 2 x 64 x f8E4M3FN
// E5M2-SAME: 2 x 64 x f8E5M2
// MODELOPT-SAME: 2 x 64 x f8E4M3FN
// BF16-SAME: 2 x 64 x bf16
// AUTO-SAME: 2 x 64 x bf16
// SKIP-SAME: 2 x 64 x bf16
// CHECK: func.func @main
// FP8: kvcache.get_cache @layer0 : <2 x 64 x f8E4M3FN>
// FP8: kvcache.get_cache @layer2 : <2 x 64 x f8E4M3FN>
// SKIP: kvcache.get_cache @layer0 : <2 x 64 x bf16>
// SKIP: kvcache.get_cache @layer2 : <2 x 64 x bf16>
// CHECK: func.func @other
// FP8: kvcache.get_cache @layer0 : <2 x 64 x f8E4M3FN>


// NVFP4: error: {{.*}}'nvfp4' is not supported yet; accepted are auto, float16
// FP7: error: {{.*}}'fp7' is not a cache type; accepted are auto, float16
// INT8: error: layer 'model.layers.0.self_attn.attn': cache type 'int8_per_token_head' (from {{.*}}) is not supported yet; supported are float16
// DSMLA: error: layer 'model.layers.0.self_attn.attn': cache type 'fp8_ds_mla' (from {{.*}}) is a format of latent rows with a latent part that is a multiple of 128, but the cache is '!kvcache.cache<2 x 64 x bf16>'; use fp8 instead
// MISSING: error: {{.*}}nowhere
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@k, @v)
kvcache.cache @layer2 of "model.layers.2.self_attn.attn" in @full : 2 x 64 x bf16 scales(@k, @v)

func.func @main(%k: tensor<4x2x64xbf16>, %v: tensor<4x2x64xbf16>, %q: tensor<4x4x64xbf16>, %out: tensor<4x4x64xbf16>) -> tensor<4x4x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %k, %v to %c : tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  %d = kvcache.get_cache @layer2 : !kvcache.cache<2 x 64 x bf16>
  %o = kvcache.paged_attention %q over %d outs(%out) {window = 31 : i64} : tensor<4x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<4x4x64xbf16>
  return %o : tensor<4x4x64xbf16>
}
func.func @other(%k: tensor<4x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %k, %k to %c : tensor<4x2x64xbf16>, tensor<4x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}
