// RUN: split-file %s %t
// RUN: kvcache-opt %t/partition.mlir -split-input-file -verify-diagnostics -o /dev/null -pass-pipeline="builtin.module(func.func(shard-partition))"
// RUN: kvcache-opt %t/propagation.mlir -split-input-file -verify-diagnostics -o /dev/null -pass-pipeline="builtin.module(func.func(sharding-propagation))"

//--- partition.mlir

// Annotations that disagree, where no propagation made them agree.

shard.grid @grid(shape = 2x2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 4 x 64 x bf16 scales(@k, @v)
func.func @different(%q: tensor<8x4x64xbf16>, %k: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s0 = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %s1 = shard.sharding @grid split_axes = [[], [0, 1]] : !shard.sharding
  %k0 = shard.shard %k to %s0 : tensor<8x4x64xbf16>
  %k1 = shard.shard %k0 to %s0 annotate_for_users : tensor<8x4x64xbf16>
  %q0 = shard.shard %q to %s1 : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s1 annotate_for_users : tensor<8x4x64xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<4 x 64 x bf16>
  // expected-note @+1 {{the other op is here}}
  kvcache.write %k1, %k1 to %c : tensor<8x4x64xbf16>, tensor<8x4x64xbf16>, !kvcache.cache<4 x 64 x bf16>
  // expected-error @+1 {{splits the KV heads of @c into 4, but another op of this cache into 2; annotate keys, values and queries with the same split of heads}}
  %r = kvcache.paged_attention %q1 over %c outs(%q1) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<4 x 64 x bf16> -> tensor<8x4x64xbf16>
  %r0 = shard.shard %r to %s1 : tensor<8x4x64xbf16>
  %r1 = shard.shard %r0 to %s1 annotate_for_users : tensor<8x4x64xbf16>
  return %r1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 3 x 64 x bf16 scales(@k, @v)
func.func @indivisible(%k: tensor<8x3x64xbf16>) {
  %s0 = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %k0 = shard.shard %k to %s0 : tensor<8x3x64xbf16>
  %k1 = shard.shard %k0 to %s0 annotate_for_users : tensor<8x3x64xbf16>
  // expected-remark @+1 {{every rank holds all 3 KV heads of @c, because nothing splits them}}
  %c = kvcache.get_cache @c : !kvcache.cache<3 x 64 x bf16>
  // expected-error @+1 {{cannot split the heads of '!kvcache.cache<3 x 64 x bf16>' over axes array<i16: 0> of @grid, whose sizes do not divide them; with fewer KV heads than ranks, use a grid with an axis for the KV heads and one for the query heads of each}}
  kvcache.write %k1, %k1 to %c : tensor<8x3x64xbf16>, tensor<8x3x64xbf16>, !kvcache.cache<3 x 64 x bf16>
  return
}

// -----

shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @dims(%k: tensor<8x2x64xbf16>) {
  %s0 = shard.sharding @grid split_axes = [[], [], [0]] : !shard.sharding
  %k0 = shard.shard %k to %s0 : tensor<8x2x64xbf16>
  %k1 = shard.shard %k0 to %s0 annotate_for_users : tensor<8x2x64xbf16>
  // expected-remark @+1 {{every rank holds all 2 KV heads}}
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{splits dimension 2 of operand 0; only heads (dimension 1) can be split}}
  kvcache.write %k1, %k1 to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @operands(%k: tensor<8x2x64xbf16>, %v: tensor<8x2x64xbf16>) {
  %s0 = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %s1 = shard.sharding @grid split_axes = [[]] : !shard.sharding
  %k0 = shard.shard %k to %s0 : tensor<8x2x64xbf16>
  %k1 = shard.shard %k0 to %s0 annotate_for_users : tensor<8x2x64xbf16>
  %v0 = shard.shard %v to %s1 : tensor<8x2x64xbf16>
  %v1 = shard.shard %v0 to %s1 annotate_for_users : tensor<8x2x64xbf16>
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{splits operands over different axes: array<i16: 0> and array<i16>}}
  kvcache.write %k1, %v1 to %c : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @memrefs(%k: memref<8x2x64xbf16>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{works on memrefs, which the dialect 'shard' does not split; run shard-partition before bufferization}}
  kvcache.write %k, %k to %c : memref<8x2x64xbf16>, memref<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  %s = shard.sharding @grid split_axes = [[0]] : !shard.sharding
  %x0 = shard.shard %x to %s : tensor<8xf32>
  %x1 = shard.shard %x0 to %s annotate_for_users : tensor<8xf32>
  return %x1 : tensor<8xf32>
}

// -----

// The tokens of a sequence over ranks: what an attention over one rank's tokens
// is no part of.

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @window(%q: tensor<8x4x64xbf16>, %o: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[], []] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  %o0 = shard.shard %o to %s : tensor<8x4x64xbf16>
  %o1 = shard.shard %o0 to %s annotate_for_users : tensor<8x4x64xbf16>
  // expected-remark @+1 {{each of 2 ranks has tokens of its own of every sequence of @c}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [1]}} : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{cannot split the tokens of a sequence over axes array<i16: 1> of @grid: it has a window, which counts tokens of all ranks}}
  %r = kvcache.paged_attention %q1 over %c outs(%o1) {softmax_scale = 0.125 : f64, window = 7 : i64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>
  %r0 = shard.shard %r to %s : tensor<8x4x64xbf16>
  %r1 = shard.shard %r0 to %s annotate_for_users : tensor<8x4x64xbf16>
  return %r1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.scale_buffer @o : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @output(%q: tensor<8x4x64xbf16>, %o: tensor<8x4x64xf8E4M3FN>) -> tensor<8x4x64xf8E4M3FN> {
  %s = shard.sharding @grid split_axes = [[], []] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  %o0 = shard.shard %o to %s : tensor<8x4x64xf8E4M3FN>
  %o1 = shard.shard %o0 to %s annotate_for_users : tensor<8x4x64xf8E4M3FN>
  // expected-remark @+1 {{each of 2 ranks has tokens of its own of every sequence of @c}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [1]}} : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{its output is quantized before the parts are merged; let it give bf16, f16 or f32, and quantize that}}
  %r = kvcache.paged_attention %q1 over %c outs(%o1) {softmax_scale = 0.125 : f64, o_scale = @o} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xf8E4M3FN>
  %r0 = shard.shard %r to %s : tensor<8x4x64xf8E4M3FN>
  %r1 = shard.shard %r0 to %s annotate_for_users : tensor<8x4x64xf8E4M3FN>
  return %r1 : tensor<8x4x64xf8E4M3FN>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @same_axis(%q: tensor<8x4x64xbf16>, %o: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[], [1]] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  %o0 = shard.shard %o to %s : tensor<8x4x64xbf16>
  %o1 = shard.shard %o0 to %s annotate_for_users : tensor<8x4x64xbf16>
  // expected-remark @+1 {{each of 2 ranks has tokens of its own of every sequence of @c}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [1]}} : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{cannot split the tokens of a sequence over axes array<i16: 1> of @grid: axis 1 splits its heads}}
  %r = kvcache.paged_attention %q1 over %c outs(%o1) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>
  %r0 = shard.shard %r to %s : tensor<8x4x64xbf16>
  %r1 = shard.shard %r0 to %s annotate_for_users : tensor<8x4x64xbf16>
  return %r1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @other_grid(%q: tensor<8x4x64xbf16>, %o: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[], []] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  %o0 = shard.shard %o to %s : tensor<8x4x64xbf16>
  %o1 = shard.shard %o0 to %s annotate_for_users : tensor<8x4x64xbf16>
  // expected-remark @+1 {{each of 2 ranks has tokens of its own of every sequence of @c}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @other, axes = [0]}} : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{cannot split the tokens of a sequence over axes array<i16: 0> of @other: its heads are split over @grid}}
  %r = kvcache.paged_attention %q1 over %c outs(%o1) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>
  %r0 = shard.shard %r to %s : tensor<8x4x64xbf16>
  %r1 = shard.shard %r0 to %s annotate_for_users : tensor<8x4x64xbf16>
  return %r1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @alibi(%q: tensor<8x4x64xbf16>, %o: tensor<8x4x64xbf16>, %a: tensor<4xf32>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[], []] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  %o0 = shard.shard %o to %s : tensor<8x4x64xbf16>
  %o1 = shard.shard %o0 to %s annotate_for_users : tensor<8x4x64xbf16>
  %w = shard.sharding @grid split_axes = [[]] : !shard.sharding
  %a0 = shard.shard %a to %w : tensor<4xf32>
  %a1 = shard.shard %a0 to %w annotate_for_users : tensor<4xf32>
  // expected-remark @+1 {{each of 2 ranks has tokens of its own of every sequence of @c}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [1]}} : !kvcache.cache<2 x 64 x bf16>
  // expected-error @+1 {{it has ALiBi slopes, which take the positions of tokens}}
  %r = kvcache.paged_attention %q1 over %c outs(%o1) alibi_slopes(%a1 : tensor<4xf32>) {softmax_scale = 0.125 : f64} : tensor<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<8x4x64xbf16>
  %r0 = shard.shard %r to %s : tensor<8x4x64xbf16>
  %r1 = shard.shard %r0 to %s annotate_for_users : tensor<8x4x64xbf16>
  return %r1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @attribute(%q: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[]] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  // expected-error @+1 {{'kvcache.sequence_axes' must be {grid = @GRID, axes = [AXIS, ...]}, but is [1]}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = [1]} : !kvcache.cache<2 x 64 x bf16>
  return %q1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @attribute(%q: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[]] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  // expected-error @+1 {{must be {grid = @GRID, axes = [AXIS, ...]}}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axis = [1]}} : !kvcache.cache<2 x 64 x bf16>
  return %q1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @attribute(%q: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[]] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  // expected-error @+1 {{'kvcache.sequence_axes' must name a 'shard.grid', but is}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @ranks, axes = [1]}} : !kvcache.cache<2 x 64 x bf16>
  return %q1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @attribute(%q: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[]] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  // expected-error @+1 {{'kvcache.sequence_axes' must name each axis once, and axes of grid whose sizes are static, but is}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [2]}} : !kvcache.cache<2 x 64 x bf16>
  return %q1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @attribute(%q: tensor<8x4x64xbf16>) -> tensor<8x4x64xbf16> {
  %s = shard.sharding @grid split_axes = [[]] : !shard.sharding
  %q0 = shard.shard %q to %s : tensor<8x4x64xbf16>
  %q1 = shard.shard %q0 to %s annotate_for_users : tensor<8x4x64xbf16>
  // expected-error @+1 {{must name each axis once}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [1, 1]}} : !kvcache.cache<2 x 64 x bf16>
  return %q1 : tensor<8x4x64xbf16>
}

// -----

shard.grid @grid(shape = 2x2)
shard.grid @other(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @disagree(%k: tensor<8x2x64xbf16>) -> tensor<8x2x64xbf16> {
  %s = shard.sharding @grid split_axes = [[]] : !shard.sharding
  %k0 = shard.shard %k to %s : tensor<8x2x64xbf16>
  %k1 = shard.shard %k0 to %s annotate_for_users : tensor<8x2x64xbf16>
  // expected-error @+1 {{and another handle to @c disagree about 'kvcache.sequence_axes'}}
  %c = kvcache.get_cache @c {kvcache.sequence_axes = {grid = @grid, axes = [1]}} : !kvcache.cache<2 x 64 x bf16>
  // expected-note @+1 {{the other one is here}}
  %d = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  kvcache.write %k1, %k1 to %d : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return %k1 : tensor<8x2x64xbf16>
}

//--- propagation.mlir

// Pages that are values.

shard.grid @grid(shape = 2)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @full page_size 16
kvcache.cache @c of "layer" in @full : 2 x 64 x bf16 scales(@k, @v)
func.func @values(%k: tensor<8x2x64xbf16>, %kp: tensor<7x16x2x64xbf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %q: tensor<3xi32>, %m: tensor<8xi64>) -> tensor<7x16x2x64xbf16> {
  %s0 = shard.sharding @grid split_axes = [[], [0]] : !shard.sharding
  %k0 = shard.shard %k to %s0 : tensor<8x2x64xbf16>
  // expected-error @+2 {{holds pages as values, which are not split over ranks; use handles of kvcache.get_cache (kvcache-import cache-operands=replaced), or export the graph of one rank}}
  // expected-error @+1 {{fail to set sharding annotations}}
  %w:2 = kvcache.with_pages @c pages(%kp, %kp : tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>) page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%q : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16> {
  ^bb0(%h: !kvcache.cache<2 x 64 x bf16>):
    kvcache.write %k0, %k0 to %h : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  }
  return %w#0 : tensor<7x16x2x64xbf16>
}
