// RUN: split-file %s %t
// RUN: kvcache-opt %t/handles.mlir -kvcache-partition-caches | FileCheck %s
// Partitioned twice, as a graph that was a shard already.
// RUN: kvcache-opt %t/twice.mlir -kvcache-partition-caches | FileCheck %s --check-prefix=TWICE

// Types of shards follow when the element type is resolved first.
// RUN: kvcache-opt %t/handles.mlir -pass-pipeline="builtin.module(kvcache-resolve-cache-types{kv-cache-dtype=fp8},kvcache-partition-caches)" | FileCheck %s --check-prefix=TYPES

// What needs the cache of one rank says which pass makes it.
// RUN: not kvcache-opt %t/handles.mlir -kvcache-caches-to-arguments 2>&1 | FileCheck %s --check-prefix=WHOLE
// RUN: not kvcache-opt %t/handles.mlir -kvcache-form-programs 2>&1 | FileCheck %s --check-prefix=WHOLE
// WHOLE: error: 'kvcache.get_cache' op is one of 2 shards of a cache that is declared whole; run kvcache-partition-caches first
// RUN: sed 's/get_cache @whole/get_cache @whole {kvcache.sequence_axes = {grid = @grid, axes = [0]}}/' %t/handles.mlir > %t/sequences.mlir
// RUN: not kvcache-opt %t/sequences.mlir -pass-pipeline="builtin.module(kvcache-partition-caches,kvcache-form-programs)" 2>&1 | FileCheck %s --check-prefix=SEQUENCES
// SEQUENCES: error: 'kvcache.get_cache' op has 'kvcache.sequence_axes', so its sequences are split over ranks; run sharding-propagation and shard-partition first

// The ranks that scales are folded for are those of the partition, and the
// config counts the heads of all ranks.
// DEFINE: %{checkpoint} = checkpoint=%inputs/checkpoints/compressed_tensors_attn_head
// RUN: kvcache-opt %t/rank.mlir -pass-pipeline="builtin.module(kvcache-apply-model-config{%{checkpoint}},kvcache-fold-checkpoint-scales{%{checkpoint} tp-size=2 tp-rank=1})" 2>/dev/null | FileCheck %s --check-prefix=RANK
// RUN: sed 's/?x2x64/?x1x64/g' %t/rank.mlir > %t/four.mlir
// RUN: kvcache-opt %t/four.mlir -pass-pipeline="builtin.module(kvcache-scale-pipeline{%{checkpoint} tp-size=4 tp-rank=3})" 2>/dev/null | FileCheck %s --check-prefix=RANK
// RANK: kvcache.scale_buffer @layer0.k : f32 = 1.353000e-02 from checkpoint
// RANK: softmax_scale = 1.250000e-01
// RUN: not kvcache-opt %t/rank.mlir -kvcache-fold-checkpoint-scales="%{checkpoint} tp-size=3" 2>&1 | FileCheck %s --check-prefix=RANKS
// RANKS: error: layer 'model.layers.0.self_attn.attn' is one of 2 shards, but tp-size is 3; expected a multiple of 2, as the graph was partitioned
// RUN: not kvcache-opt %t/rank.mlir -kvcache-fold-checkpoint-scales=%{checkpoint} 2>&1 | FileCheck %s --check-prefix=NORANK
// NORANK: error: {{.*}}expected a scale for each of the 1 KV heads of this rank
// NORANK: remark: layer 'model.layers.0.self_attn.attn' is one of 2 shards; scales per head need tp-size=2 and tp-rank
// A graph that was exported for a rank has no shards; its heads are compared all the same.
// RUN: sed 's/ {shards = 2 : i64}//' %t/rank.mlir > %t/exported.mlir
// RUN: kvcache-opt %t/exported.mlir -pass-pipeline="builtin.module(kvcache-scale-pipeline{%{checkpoint} tp-size=2 tp-rank=1})" 2>/dev/null | FileCheck %s --check-prefix=RANK
// RUN: not kvcache-opt %t/exported.mlir -kvcache-apply-model-config="%{checkpoint} tp-size=8" 2>&1 | FileCheck %s --check-prefix=EXPORTED
// EXPORTED: error: {{.*}}the graph has query heads 16, but config.json: num_attention_heads says 4

// CHECK: kvcache.cache @layer0 {{.*}} : 1 x 64 x bf16 scales(@layer0.k, @layer0.v) {shards = 2 : i64}
// CHECK: kvcache.cache @whole {{.*}} : 2 x 64 x bf16 scales(@layer0.k, @layer0.v){{$}}
// CHECK: kvcache.get_cache @layer0 : <1 x 64 x bf16>
// CHECK: kvcache.get_cache @whole : <2 x 64 x bf16>
// TYPES: kvcache.cache @layer0 {{.*}} : 1 x 64 x f8E4M3FN
// TYPES: kvcache.get_cache @layer0 : <1 x 64 x f8E4M3FN>
// TWICE: kvcache.cache @layer0 {{.*}} : 1 x 64 x bf16 scales(@layer0.k, @layer0.v) {shards = 6 : i64}

//--- handles.mlir
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
kvcache.cache @whole of "model.layers.1.self_attn.attn" in @full : 2 x 64 x bf16 scales(@layer0.k, @layer0.v)
func.func @main(%k: tensor<?x1x64xbf16>, %w: tensor<?x2x64xbf16>) {
  %c = kvcache.get_cache @layer0 shards 2 : !kvcache.cache<1 x 64 x bf16>
  kvcache.write %k, %k to %c : tensor<?x1x64xbf16>, tensor<?x1x64xbf16>, !kvcache.cache<1 x 64 x bf16>
  %d = kvcache.get_cache @whole : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %w, %w to %d : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

//--- twice.mlir
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 3 x 64 x bf16 scales(@layer0.k, @layer0.v) {shards = 2}
func.func @main(%k: tensor<?x1x64xbf16>) {
  %c = kvcache.get_cache @layer0 shards 3 : !kvcache.cache<1 x 64 x bf16>
  kvcache.write %k, %k to %c : tensor<?x1x64xbf16>, tensor<?x1x64xbf16>, !kvcache.cache<1 x 64 x bf16>
  return
}

//--- rank.mlir
kvcache.scale_buffer @layer0.k : f32 dynamic
kvcache.scale_buffer @layer0.v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : 1 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v) {shards = 2 : i64}
func.func @main(%q: tensor<?x2x64xbf16>, %o: tensor<?x2x64xbf16>) -> tensor<?x2x64xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<1 x 64 x f8E4M3FN>
  %r = kvcache.paged_attention %q over %c outs(%o) : tensor<?x2x64xbf16>, !kvcache.cache<1 x 64 x f8E4M3FN> -> tensor<?x2x64xbf16>
  return %r : tensor<?x2x64xbf16>
}
