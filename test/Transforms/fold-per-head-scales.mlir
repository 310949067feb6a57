// Scales of an attn_head checkpoint, one per KV head; a rank takes its own.
// RUN: split-file %s %t
// RUN: kvcache-opt %t/all.mlir -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/compressed_tensors_attn_head 2>/dev/null | FileCheck %s --check-prefix=ALL
// RUN: kvcache-opt %t/rank.mlir -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/compressed_tensors_attn_head tp-size=2 tp-rank=1})" 2>/dev/null | FileCheck %s --check-prefix=RANK
// More ranks than heads: ranks 2 and 3 of 4 share head 1.
// RUN: kvcache-opt %t/rank.mlir -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/compressed_tensors_attn_head tp-size=4 tp-rank=2})" 2>/dev/null | FileCheck %s --check-prefix=RANK
// Per-tensor scales are the same on every rank.
// RUN: kvcache-opt %t/rank.mlir -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/fused_qkv tp-size=2 tp-rank=0})" 2>/dev/null >%t/0
// RUN: kvcache-opt %t/rank.mlir -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/fused_qkv tp-size=2 tp-rank=1})" 2>/dev/null >%t/1
// RUN: diff %t/0 %t/1
// RUN: FileCheck %s --check-prefix=SCALAR <%t/0
// RUN: not kvcache-opt %t/rank.mlir -kvcache-fold-checkpoint-scales=checkpoint=%inputs/checkpoints/compressed_tensors_attn_head 2>&1 | FileCheck %s --check-prefix=HEADS
// RUN: not kvcache-opt %t/rank.mlir -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{checkpoint=%inputs/checkpoints/compressed_tensors_attn_head tp-size=3})" 2>&1 | FileCheck %s --check-prefix=RANKS
// RUN: not kvcache-opt %t/rank.mlir -pass-pipeline="builtin.module(kvcache-fold-checkpoint-scales{tp-size=2 tp-rank=2})" 2>&1 | FileCheck %s --check-prefix=NORANK

// ALL: kvcache.scale_buffer @layer0.k : f32 = [1.230000e-02, 1.353000e-02] from checkpoint "model.layers.0.self_attn.k_scale"
// ALL: kvcache.scale_buffer @layer0.v : f32 = [3.450000e-02, 3.795000e-02] from checkpoint "model.layers.0.self_attn.v_scale"
// RANK: kvcache.scale_buffer @layer0.k : f32 = 1.353000e-02 from checkpoint
// RANK: kvcache.scale_buffer @layer0.v : f32 = 3.795000e-02 from checkpoint
// SCALAR: kvcache.scale_buffer @layer0.k : f32 = 1.230000e-02 from checkpoint "model.layers.0.self_attn.qkv_proj.k_scale"
// HEADS: error: layer model.layers.0.self_attn.attn: expected a scale for each of the 1 KV heads of this rank, found shape [2, 1, 1] of 'model.layers.0.self_attn.k_scale'
// RANKS: error: {{.*}}expected a number of KV heads that divides the 3 tensor parallel ranks or is a multiple of them, found shape [2, 1, 1]
// NORANK: error: tp-rank 2 of tp-size 2: expected at least one rank, and a rank from 0 to tp-size - 1

//--- all.mlir
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)

//--- rank.mlir
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 1 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
