// RUN: rm -rf %t && mkdir -p %t/gptoss %t/gemma4
// RUN: split-file %s %t
// RUN: cp %inputs/checkpoints/no_scales/model.safetensors %inputs/configs/gpt-oss-20b/config.json %t/gptoss
// RUN: not kvcache-opt %t/sinks.mlir -kvcache-apply-model-config=checkpoint=%t/gptoss 2>&1 | FileCheck %s --check-prefix=SINKS
// RUN: %python %t/sinks.py %t/gptoss/sinks.safetensors 3
// RUN: not kvcache-opt %t/sinks.mlir -kvcache-apply-model-config=checkpoint=%t/gptoss 2>&1 | FileCheck %s --check-prefix=COUNT
// RUN: %python %t/sinks.py %t/gptoss/sinks.safetensors 64
// RUN: kvcache-opt %t/sinks.mlir -kvcache-apply-model-config=checkpoint=%t/gptoss 2>&1 | FileCheck %s --check-prefix=FOUND
// RUN: cp %inputs/checkpoints/no_scales/model.safetensors %inputs/configs/gemma4-e2b-text/config.json %t/gemma4
// RUN: not kvcache-opt %t/shared.mlir -kvcache-apply-model-config=checkpoint=%t/gemma4 2>&1 | FileCheck %s --check-prefix=SHARED

// What the config asks for and the ops cannot do, and sinks.

// SINKS: error: layer 'model.layers.0.attn' has attention sinks by the model's config, but the checkpoint has neither 'model.layers.0.sinks' nor 'model.layers.0.attention_sink_bias'; give the op its sinks as an operand
// COUNT: error: layer 'model.layers.0.attn': 'model.layers.0.sinks' has 3 values; expected one for each of the 64 query heads
// FOUND: remark: layer 'model.layers.0.attn': sinks from 'model.layers.0.sinks'
// FOUND: %[[S:.*]] = arith.constant dense<{{.*}}> : tensor<64xf32>
// FOUND: kvcache.paged_attention {{.*}} sinks(%[[S]] : tensor<64xf32>)
// SHARED: error: by the model's config, layer 'model.layers.9.self_attn.attn' reads the cache of layer 'model.layers.4.self_attn.attn', but in the graph it has its own; the attention must name the cache of that layer, and nothing may write for this one

//--- sinks.py
import sys
import ml_dtypes, numpy as np
from safetensors.numpy import save_file
save_file({"model.layers.0.sinks": np.linspace(-2, 2, int(sys.argv[2])).astype(ml_dtypes.bfloat16)}, sys.argv[1])

//--- sinks.mlir
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.attn" in @full : 8 x 64 x bf16 scales(@k, @v)
func.func @main(%q: tensor<4x64x64xbf16>, %out: tensor<4x64x64xbf16>) -> tensor<4x64x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<8 x 64 x bf16>
  %o = kvcache.paged_attention %q over %c outs(%out) : tensor<4x64x64xbf16>, !kvcache.cache<8 x 64 x bf16> -> tensor<4x64x64xbf16>
  return %o : tensor<4x64x64xbf16>
}

//--- shared.mlir
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @a of "model.layers.9.self_attn.attn" in @full : 1 x 512 x bf16 scales(@k, @v)
kvcache.cache @b of "model.layers.4.self_attn.attn" in @full : 1 x 512 x bf16 scales(@k, @v)
func.func @main(%q: tensor<4x8x512xbf16>, %out: tensor<4x8x512xbf16>) -> tensor<4x8x512xbf16> {
  %c = kvcache.get_cache @a : !kvcache.cache<1 x 512 x bf16>
  %d = kvcache.get_cache @b : !kvcache.cache<1 x 512 x bf16>
  %p = kvcache.paged_attention %q over %d outs(%out) : tensor<4x8x512xbf16>, !kvcache.cache<1 x 512 x bf16> -> tensor<4x8x512xbf16>
  %o = kvcache.paged_attention %q over %c outs(%out) : tensor<4x8x512xbf16>, !kvcache.cache<1 x 512 x bf16> -> tensor<4x8x512xbf16>
  return %o : tensor<4x8x512xbf16>
}
