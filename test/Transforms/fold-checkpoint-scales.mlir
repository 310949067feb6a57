// RUN: kvcache-opt %s -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/modelopt_fp8 2>/dev/null | FileCheck %s --check-prefixes=CHECK,MODELOPT
// RUN: kvcache-opt %s -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/sharded_modelopt 2>/dev/null | FileCheck %s --check-prefixes=CHECK,MODELOPT
// RUN: kvcache-opt %s -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/legacy_kv_scale 2>/dev/null | FileCheck %s --check-prefixes=CHECK,KV
// RUN: kvcache-opt %s -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/no_scales 2> %t.warnings | FileCheck %s --check-prefixes=CHECK,DEFAULT
// RUN: FileCheck %s --check-prefix=WARN < %t.warnings
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/modelopt_fp8 scale=model.layers.0.self_attn.k=0.5,1.v=0.25})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,OVERRIDE
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/no_scales scale-overlay=%inputs/checkpoints/modelopt_fp8/model.safetensors})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,MODELOPT
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/modelopt_fp8 round-scales-to=bf16})" 2>/dev/null | FileCheck %s --check-prefixes=CHECK,ROUNDED

// Names first, values later, is the same as both at once.
// RUN: kvcache-opt %s -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/modelopt_fp8 names-only})" 2>/dev/null > %t.names
// RUN: FileCheck %s --check-prefix=NAMES < %t.names
// RUN: kvcache-opt %t.names -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/modelopt_fp8 2>/dev/null > %t.later
// RUN: kvcache-opt %s -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/modelopt_fp8 2>/dev/null > %t.once
// RUN: diff %t.later %t.once

// Static scales keep their values, whichever checkpoint comes next.
// RUN: kvcache-opt %t.once -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/no_scales > %t.twice 2> %t.silence
// RUN: diff %t.once %t.twice
// RUN: count 0 < %t.silence

// RUN: not kvcache-opt %t.names -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/no_scales 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: not kvcache-opt %s -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/no_scales require-calibrated})" 2>&1 | FileCheck %s --check-prefix=REQUIRED
// RUN: not kvcache-opt %s -kvcache-fold-checkpoint-scales=scale-policy=lax 2>&1 | FileCheck %s --check-prefix=POLICY
// RUN: not kvcache-opt %s -kvcache-fold-checkpoint-scales=round-scales-to=f8 2>&1 | FileCheck %s --check-prefix=ROUND
// RUN: not kvcache-opt %s -kvcache-fold-checkpoint-scales=scale=0.k=-1 2>&1 | FileCheck %s --check-prefix=BADSCALE
// RUN: not kvcache-opt %s -kvcache-fold-checkpoint-scales=scale=7.k=1.5 2>&1 | FileCheck %s --check-prefix=NOLAYER
// RUN: not kvcache-opt %s -kvcache-fold-checkpoint-scales=scale=0.k=1e-40 2>&1 | FileCheck %s --check-prefix=DENORMAL

// MODELOPT: kvcache.scale_buffer @layer0.k : f32 = 1.230000e-02 from checkpoint "model.layers.0.self_attn.k_proj.k_scale"
// MODELOPT: kvcache.scale_buffer @layer0.v : f32 = 3.450000e-02 from checkpoint "model.layers.0.self_attn.v_proj.v_scale"
// MODELOPT: kvcache.scale_buffer @layer1.k : f32 = 2.460000e-02 from checkpoint "model.layers.1.self_attn.k_proj.k_scale"
// MODELOPT: kvcache.scale_buffer @layer1.v : f32 = 6.900000e-02 from checkpoint "model.layers.1.self_attn.v_proj.v_scale"
// KV: kvcache.scale_buffer @layer0.k : f32 = 5.000000e-02 from checkpoint "model.layers.0.self_attn.kv_scale"
// KV: kvcache.scale_buffer @layer0.v : f32 = 5.000000e-02 from checkpoint "model.layers.0.self_attn.kv_scale"
// KV: kvcache.scale_buffer @layer1.k : f32 = 1.000000e-01 from checkpoint "model.layers.1.self_attn.kv_scale"
// DEFAULT: kvcache.scale_buffer @layer0.k : f32 = 1.000000e+00 from default
// DEFAULT: kvcache.scale_buffer @layer0.v : f32 = 1.000000e+00 from default
// DEFAULT: kvcache.scale_buffer @layer1.k : f32 = 1.000000e+00 from default
// OVERRIDE: kvcache.scale_buffer @layer0.k : f32 = 5.000000e-01 from override{{$}}
// OVERRIDE: kvcache.scale_buffer @layer0.v : f32 = 3.450000e-02 from checkpoint
// OVERRIDE: kvcache.scale_buffer @layer1.k : f32 = 2.460000e-02 from checkpoint
// OVERRIDE: kvcache.scale_buffer @layer1.v : f32 = 2.500000e-01 from override{{$}}
// 0.0123 to the nearest bf16.
// ROUNDED: kvcache.scale_buffer @layer0.k : f32 = 0.0123291016 from checkpoint
// NAMES: kvcache.scale_buffer @layer0.k : f32 checkpoint "model.layers.0.self_attn.k_proj.k_scale"
// NAMES: kvcache.load_scale @layer1.v

// CHECK: func.func @foreign
// MODELOPT-NEXT: %[[S:.*]] = arith.constant 6.900000e-02 : f32
// DEFAULT-NEXT: %[[S:.*]] = arith.constant 1.000000e+00 : f32
// CHECK-NOT: kvcache.load_scale
// MODELOPT: return %[[S]]

// WARN: warning: {{.*}}1.0
// OTHER: error: @layer0.k is bound to "model.layers.0.self_attn.k_proj.k_scale", but this checkpoint has no such scale; fold with the checkpoint that the names come from
// REQUIRED: error: {{.*}}model.layers.0.self_attn
// POLICY: error: option scale-policy must be strict or compatible, but is 'lax'
// ROUND: error: option round-scales-to must be bf16 or f16, but is 'f8'
// BADSCALE: error: option scale: {{.*}}0.k=-1
// NOLAYER: error: {{.*}}7.k=1.5
// DENORMAL: error: {{.*}}k
kvcache.cache_group @full page_size 16
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.scale_buffer @layer1.k : f32 dynamic
kvcache.scale_buffer @layer1.v : f32 dynamic
kvcache.cache @layer1 of "model.layers.1.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer1.k, @layer1.v)
func.func @foreign() -> f32 {
  %s = kvcache.load_scale @layer1.v : f32
  return %s : f32
}
