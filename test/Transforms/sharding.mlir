// Upstream's sharding passes split the heads of cache ops.
// RUN: kvcache-opt %s -split-input-file -pass-pipeline="builtin.module(func.func(sharding-propagation{traversal=forward}))" | FileCheck %s --check-prefix=PROPAGATED
// RUN: kvcache-opt %s -split-input-file -pass-pipeline="builtin.module(func.func(sharding-propagation{traversal=forward},shard-partition),kvcache-partition-caches)" 2>%t | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK <%t

// One annotation, of the keys, splits everything that uses the cache.

// PROPAGATED-LABEL: func.func @keys
// PROPAGATED: %[[S:.*]] = shard.sharding @grid split_axes = {{\[\[\], \[0\]\]}}
// PROPAGATED: %[[Q:.*]] = shard.shard %arg0 to {{.*}} annotate_for_users
// PROPAGATED: kvcache.paged_attention %[[Q]]

// CHECK: kvcache.cache @c of "layer" in @full : 1 x 64 x bf16 scales(@k, @v) {shards = 2 : i64}
// CHECK-LABEL: func.func @keys(%arg0: tensor<?x2x64xbf16>, %arg1: tensor<?x1x64xbf16>, %arg2: tensor<?x1x64xbf16>, %arg3: tensor<?x2x64xbf16>, %arg4: tensor<?x2xf32>) -> (tensor<?x2x64xbf16>, tensor<?x2xf32>)
// CHECK: %[[C:.*]] = kvcache.get_cache @c : <1 x 64 x bf16>
// CHECK: kvcache.write %arg1, %arg2 to %[[C]] : tensor<?x1x64xbf16>
// CHECK: kvcache.paged_attention %arg0 over %[[C]] outs(%arg3, %arg4)
// CHECK-NOT: shard.all
shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @keys(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>, %o: tensor<?x4x64xbf16>, %l: tensor<?x4xf32>)
    -> (tensor<?x4x64xbf16>, tensor<?x4xf32>) {
  %s = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %k1 = shard.shard %k to %s : tensor<?x2x64xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %k1, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  %r:2 = kvcache.paged_attention %q over %c outs(%o, %l) {softmax_scale = 0.125 : f64}
    : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<?x4x64xbf16>, tensor<?x4xf32>
  return %r#0, %r#1 : tensor<?x4x64xbf16>, tensor<?x4xf32>
}

// -----

// Four ranks and two KV heads: the second axis splits the query heads of each
// KV head, and every two ranks hold the same keys.

// CHECK: kvcache.cache @c of "layer" in @full : 1 x 64 x bf16 scales(@k, @v) {shards = 2 : i64}
// CHECK-LABEL: func.func @group(%arg0: tensor<8x1x64xbf16>, %arg1: tensor<8x1x64xbf16>, %arg2: tensor<8x1x64xbf16>) -> tensor<8x1x64xbf16>
shard.grid @grid(shape = 2x2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @group(%q: tensor<8x4x64xbf16>, %k: tensor<8x2x64xbf16>, %o: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[], [0, 1]] : !shard.sharding
  %q1 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %k, %k to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  %r = kvcache.paged_attention %q1 over %c outs(%o) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>
  return %r : tensor<8x4x64xbf16>
}

// -----

// Latent rows are whole on every rank, the query heads that read them are not.

// CHECK: kvcache.cache @c of "layer" in @full : latent 512 + 64 x bf16 scales(@k, @k){{$}}
// CHECK-LABEL: func.func @latent(%arg0: tensor<8x4x576xbf16>, %arg1: tensor<8x512xbf16>, %arg2: tensor<8x64xbf16>, %arg3: tensor<8x4x512xbf16>) -> tensor<8x4x512xbf16>
// CHECK: kvcache.write_latent %arg1, %arg2
// CHECK: kvcache.mla_attention %arg0
shard.grid @grid(shape = 4)
kvcache.scale_buffer @k : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : latent 512 + 64 x bf16 scales(@k, @k)
func.func @latent(%q: tensor<8x16x576xbf16>, %l: tensor<8x512xbf16>, %p: tensor<8x64xbf16>, %o: tensor<8x16x512xbf16>) -> tensor<8x16x512xbf16> {
  %s = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %q1 = shard.shard %q to %s : tensor<8x16x576xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  kvcache.write_latent %l, %p to %c : tensor<8x512xbf16>, tensor<8x64xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  %r = kvcache.mla_attention %q1 over %c outs(%o) {softmax_scale = 0.125 : f64} : tensor<8x16x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<8x16x512xbf16>
  return %r : tensor<8x16x512xbf16>
}

// -----

// What cannot be split is gathered: tokens, and heads over an axis that does
// not divide them.

// CHECK-LABEL: func.func @tokens(%arg0: tensor<4x4x64xbf16>
// CHECK: shard.all_gather %arg0 on @grid grid_axes = [0] gather_axis = 0 : tensor<4x4x64xbf16> -> tensor<8x4x64xbf16>
// CHECK: kvcache.get_cache @c : <2 x 64 x bf16>
// CHECK-LABEL: func.func @indivisible(%arg0: tensor<8x1x64xbf16>
// CHECK: shard.all_gather %arg0 on @four grid_axes = [0] gather_axis = 1 : tensor<8x1x64xbf16> -> tensor<8x4x64xbf16>
// REMARK: remark: every rank holds all 2 KV heads of @c, because nothing splits them
// REMARK: remark: every rank holds all 2 KV heads of @c, because nothing splits them
shard.grid @grid(shape = 2)
shard.grid @four(shape = 4)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @tokens(%q: tensor<8x4x64xbf16>, %o: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[0]] : !shard.sharding
  %q1 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  %r = kvcache.paged_attention %q1 over %c outs(%o) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>
  return %r : tensor<8x4x64xbf16>
}
func.func @indivisible(%q: tensor<8x4x64xbf16>, %o: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @four split_axes = [[], [0]] : !shard.sharding
  %q1 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  %r = kvcache.paged_attention %q1 over %c outs(%o) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>
  return %r : tensor<8x4x64xbf16>
}

// -----

// Elementwise ops are split as their input is; a scale is whole on every rank;
// an output that is wanted whole is gathered behind the attention.

// CHECK-LABEL: func.func @elementwise(%arg0: tensor<8x2x64xbf16>, %arg1: f32, %arg2: tensor<8x2x64xbf16>) -> tensor<8x4x64xbf16>
// CHECK: %[[X:.*]] = kvcache.quantize %arg0 by %arg1 : tensor<8x2x64xbf16> to tensor<8x2x64xf8E4M3FN>
// CHECK: %[[L:.*]] = kvcache.load_scale @k : f32
// CHECK: %[[Y:.*]] = kvcache.dequantize %[[X]] by %[[L]] : tensor<8x2x64xf8E4M3FN> to tensor<8x2x64xbf16>
// CHECK: %[[R:.*]] = kvcache.paged_attention %[[Y]]
// CHECK: shard.all_gather %[[R]] on @grid grid_axes = [0] gather_axis = 1 : tensor<8x2x64xbf16> -> tensor<8x4x64xbf16>
shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @elementwise(%q: tensor<8x4x64xbf16>, %s: f32, %o: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %split = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %q1 = shard.shard %q to %split : tensor<8x4x64xbf16>
  %x = kvcache.quantize %q1 by %s : tensor<8x4x64xbf16> to tensor<8x4x64xf8E4M3FN>
  %l = kvcache.load_scale @k : f32
  %y = kvcache.dequantize %x by %l : tensor<8x4x64xf8E4M3FN> to tensor<8x4x64xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  %r = kvcache.paged_attention %y over %c outs(%o) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>
  %whole = shard.sharding @grid split_axes = [[]] : !shard.sharding
  %r1 = shard.shard %r to %whole annotate_for_users : tensor<8x4x64xbf16>
  return %r1 : tensor<8x4x64xbf16>
}

// -----

// Tables and positions are whole on every rank.

// CHECK-LABEL: func.func @rope(%arg0: tensor<8x1x64xbf16>, %arg1: tensor<40x64xf32>, %arg2: tensor<8xi64>) -> tensor<8x1x64xbf16>
// CHECK: kvcache.write %arg0, %arg0 to %{{.*}} rope(%arg1 at %arg2 : tensor<40x64xf32>, tensor<8xi64>) : tensor<8x1x64xbf16>, tensor<8x1x64xbf16>
shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @rope(%k: tensor<8x2x64xbf16>, %t: tensor<40x64xf32>, %p: tensor<8xi64>) -> tensor<8x2x64xbf16> {
  %split = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %k1 = shard.shard %k to %split : tensor<8x2x64xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %k1, %k1 to %c rope(%t at %p : tensor<40x64xf32>, tensor<8xi64>) : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return %k1 : tensor<8x2x64xbf16>
}

// -----

// A merge is split as its partials are, LSEs by heads too; page ids are whole.

// CHECK-LABEL: func.func @merge(%arg0: tensor<8x2x64xbf16>, %arg1: tensor<8x2xf32>, %arg2: tensor<8x2x64xbf16>, %arg3: tensor<8x2xf32>, %arg4: tensor<3x2xi64>) -> tensor<8x2x64xbf16>
// CHECK: %[[C:.*]] = kvcache.get_cache @c : <1 x 64 x bf16>
// CHECK: kvcache.copy_pages %arg4 in %[[C]] : tensor<3x2xi64>, <1 x 64 x bf16>
// CHECK: %[[R:.*]]:2 = kvcache.paged_attention %arg0 over %[[C]] outs(%arg2, %arg3)
// CHECK: kvcache.merge_states %[[R]]#0, %[[R]]#1 with %arg0, %arg1 outs(%arg2, %arg3) : tensor<8x2x64xbf16>, tensor<8x2xf32> -> tensor<8x2x64xbf16>, tensor<8x2xf32>
shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @merge(%q: tensor<8x4x64xbf16>, %lq: tensor<8x4xf32>, %o: tensor<8x4x64xbf16>, %l: tensor<8x4xf32>, %p: tensor<3x2xi64>) -> tensor<8x4x64xbf16> {
  %split = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %q1 = shard.shard %q to %split : tensor<8x4x64xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  kvcache.copy_pages %p in %c : tensor<3x2xi64>, !kvcache.cache<2 x 64 x bf16>
  %r, %lr = kvcache.paged_attention %q1 over %c outs(%o, %l) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>, tensor<8x4xf32>
  %m, %lm = kvcache.merge_states %r, %lr with %q1, %lq outs(%o, %l) : tensor<8x4x64xbf16>, tensor<8x4xf32> -> tensor<8x4x64xbf16>, tensor<8x4xf32>
  return %m : tensor<8x4x64xbf16>
}

// -----

// Each rank has tokens of its own: their attentions are merged by LSE, sinks
// once, and rows of no sequence keep what is in outs.

// REMARK: remark: each of 3 ranks has tokens of its own of every sequence of @c: its lengths, page table and slots are those of its tokens, and a sequence has one query row a step
// CHECK-LABEL: func.func @sequence(%arg0: tensor<?x2x64xbf16>, %arg1: tensor<?x1x64xbf16>, %arg2: tensor<2xf32>, %arg3: tensor<?x2x64xbf16>) -> tensor<?x2x64xbf16>
// CHECK: %[[C:.*]] = kvcache.get_cache @c : <1 x 64 x bf16>
// CHECK: kvcache.write %arg1, %arg1 to %[[C]]
// CHECK: %[[INF:.*]] = arith.constant 0x7F800000 : f32
// CHECK: %[[L:.*]] = linalg.fill ins(%[[INF]] : f32)
// CHECK: %[[P:.*]]:2 = kvcache.paged_attention %arg0 over %[[C]] outs(%{{.*}}, %[[L]]) {softmax_scale = 1.250000e-01 : f64} : {{.*}} -> tensor<?x2x64xf32>, tensor<?x2xf32>
// CHECK: %[[E:.*]] = tensor.expand_shape %[[P]]#0
// CHECK: %[[G:.*]] = shard.all_gather %[[E]] on @grid grid_axes = [1] gather_axis = 0 : tensor<1x?x2x64xf32> -> tensor<3x?x2x64xf32>
// CHECK: %[[GL:.*]] = shard.all_gather %{{.*}} on @grid grid_axes = [1] gather_axis = 0 : tensor<1x?x2xf32> -> tensor<3x?x2xf32>
// CHECK: tensor.extract_slice %[[G]][0, 0, 0, 0]
// CHECK: %[[FIRST:.*]] = tensor.extract_slice %[[GL]][0, 0, 0]
// CHECK-COUNT-2: kvcache.merge_states
// CHECK: %[[S:.*]] = linalg.generic {{.*}} ins(%{{.*}}, %arg2 : tensor<?x2xf32>, tensor<2xf32>)
// CHECK: %[[M:.*]]:2 = kvcache.merge_states %{{.*}}, %{{.*}} with %{{.*}}, %[[S]]
// CHECK: linalg.generic {{.*}} ins(%[[FIRST]], %[[M]]#0 : {{.*}}) outs(%arg3 : tensor<?x2x64xbf16>)
shard.grid @grid(shape = 2x3)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @sequence(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %sinks: tensor<4xf32>, %o: tensor<?x4x64xbf16>) -> tensor<?x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %k1 = shard.shard %k to %s : tensor<?x2x64xbf16>
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [1]}} : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %k1, %k1 to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  %r = kvcache.paged_attention %q over %c outs(%o) sinks(%sinks : tensor<4xf32>) {softmax_scale = 0.125 : f64} : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<?x4x64xbf16>
  return %r : tensor<?x4x64xbf16>
}

// -----

// The attribute alone splits, latent rows too; an axis of tokens is none of
// heads, so what asks for it there is gathered.

// CHECK-LABEL: func.func @latent_sequence(%arg0: tensor<8x8x576xbf16>
// CHECK: shard.all_gather %arg0 on @grid grid_axes = [0] gather_axis = 1 : tensor<8x8x576xbf16> -> tensor<8x16x576xbf16>
// CHECK: %[[P:.*]]:2 = kvcache.mla_attention %{{.*}} over %{{.*}} -> tensor<8x16x512xf32>, tensor<8x16xf32>
// CHECK: shard.all_gather %{{.*}} gather_axis = 0 : tensor<1x8x16x512xf32> -> tensor<2x8x16x512xf32>
// CHECK: kvcache.merge_states
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<8x16xf32>)
shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : latent 512 + 64 x bf16 scales(@k, @k)
func.func @latent_sequence(%q: tensor<8x16x576xbf16>, %l: tensor<8x512xbf16>, %p: tensor<8x64xbf16>, %o: tensor<8x16x512xbf16>, %e: tensor<8x16xf32>) -> (tensor<8x16x512xbf16>, tensor<8x16xf32>) {
  %s = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %q1 = shard.shard %q to %s : tensor<8x16x576xbf16>
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [0]}} : !kvcache.cache<latent 512 + 64 x bf16>
  kvcache.write_latent %l, %p to %c : tensor<8x512xbf16>, tensor<8x64xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  %r:2 = kvcache.mla_attention %q1 over %c outs(%o, %e) {softmax_scale = 0.125 : f64} : tensor<8x16x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<8x16x512xbf16>, tensor<8x16xf32>
  return %r#0, %r#1 : tensor<8x16x512xbf16>, tensor<8x16xf32>
}

// -----

// Tokens over two axes: what both ranks along each have is gathered at once.

// REMARK: remark: each of 6 ranks has tokens of its own of every sequence of @c
// CHECK-LABEL: func.func @two_axes(%arg0: tensor<8x2x64xbf16>
// CHECK: shard.all_gather %{{.*}} on @grid grid_axes = [2, 0] gather_axis = 0 : tensor<1x8x2x64xf32> -> tensor<6x8x2x64xf32>
// CHECK-COUNT-5: kvcache.merge_states
// CHECK-NOT: kvcache.merge_states
shard.grid @grid(shape = 3x2x2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @two_axes(%q: tensor<8x4x64xbf16>, %o: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[], [1]] : !shard.sharding
  %q1 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [2, 0]}} : !kvcache.cache<2 x 64 x bf16>
  %r = kvcache.paged_attention %q1 over %c outs(%o) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>
  return %r : tensor<8x4x64xbf16>
}
