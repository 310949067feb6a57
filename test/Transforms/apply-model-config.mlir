// RUN: kvcache-opt %s -split-input-file -kvcache-apply-model-config=checkpoint=%inputs/checkpoints/modelopt_fp8 2> %t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK < %t.remarks
// RUN: kvcache-opt %s -split-input-file -kvcache-apply-model-config=checkpoint=%inputs/checkpoints/modelopt_fp8 2>/dev/null > %t.once
// RUN: kvcache-opt %t.once -split-input-file -kvcache-apply-model-config=checkpoint=%inputs/checkpoints/modelopt_fp8 2>/dev/null > %t.twice
// RUN: diff %t.once %t.twice
// RUN: kvcache-opt %s -split-input-file -pass-pipeline="builtin.module(kvcache-apply-model-config{softmax-scale=0.5 soft-cap=30 window=4096})" 2>/dev/null | FileCheck %s --check-prefix=OPTIONS
// RUN: kvcache-opt %s -split-input-file -pass-pipeline="builtin.module(kvcache-apply-model-config{softmax-scale=0.5 soft-cap=0 window=0})" 2>/dev/null | FileCheck %s --check-prefix=NONE
// RUN: not kvcache-opt %s -split-input-file -kvcache-apply-model-config 2>&1 | FileCheck %s --check-prefix=NOTHING
// RUN: not kvcache-opt %s -split-input-file -kvcache-apply-model-config=softmax-scale=-1 2>&1 | FileCheck %s --check-prefix=NEGATIVE

// The config gives what the graph does not say; a remark names it.

// CHECK: kvcache.paged_attention {{.*}} {kvcache.softmax_scale_from = "config.json: head_dim", softmax_scale = 1.250000e-01 : f64} :
// REMARK: remark: {{.*}}softmax scale from config.json: head_dim
// OPTIONS: kvcache.paged_attention {{.*}} {kvcache.softmax_scale_from = "option softmax-scale", soft_cap = 3.000000e+01 : f64, softmax_scale = 5.000000e-01 : f64, window = 4095 : i64} :
// NONE: kvcache.paged_attention {{.*}} {kvcache.softmax_scale_from = "option softmax-scale", softmax_scale = 5.000000e-01 : f64} :
// NOTHING: error: {{.*}}model.layers.0.self_attn.attn
// NEGATIVE: error: {{.*}}softmax
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @main(%q: tensor<4x4x64xbf16>, %out: tensor<4x4x64xbf16>) -> tensor<4x4x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  %o = kvcache.paged_attention %q over %c outs(%out) : tensor<4x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<4x4x64xbf16>
  return %o : tensor<4x4x64xbf16>
}

// -----

// An attribute of the graph wins over the config, an option over both. Where the
// scale comes from is noted unless it is the graph.

// CHECK: kvcache.paged_attention {{.*}} {softmax_scale = 2.500000e-01 : f64, window = 7 : i64} :
// OPTIONS: kvcache.paged_attention {{.*}} {kvcache.softmax_scale_from = "option softmax-scale", soft_cap = 3.000000e+01 : f64, softmax_scale = 5.000000e-01 : f64, window = 4095 : i64} :
// NONE: kvcache.paged_attention {{.*}} {kvcache.softmax_scale_from = "option softmax-scale", softmax_scale = 5.000000e-01 : f64} :
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @main(%q: tensor<4x4x64xbf16>, %out: tensor<4x4x64xbf16>) -> tensor<4x4x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<2 x 64 x bf16>
  %o = kvcache.paged_attention %q over %c outs(%out) {softmax_scale = 0.25 : f64, window = 7 : i64} : tensor<4x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<4x4x64xbf16>
  return %o : tensor<4x4x64xbf16>
}
