// Every numbered constraint (C<n>) of the dialect is broken here at least once.
// RUN: kvcache-opt %s -split-input-file -verify-diagnostics -o /dev/null

// #kvcache.scale (C1): a static scale has values.
// expected-error@+1 {{a scale in state 'static' has 0 values; expected at least one}}
kvcache.scale_buffer @s : f32 = [] from default

// -----

// #kvcache.scale (C2): not zero, ...
// expected-error@+1 {{a scale must be positive, finite and normal in f32, but is 0.0}}
kvcache.scale_buffer @s : f32 = 0.0 from override

// -----

// ... not negative, ...
// expected-error@+1 {{a scale must be positive, finite and normal in f32, but is -1.0}}
kvcache.scale_buffer @s : f32 = -1.0 from override

// -----

// ... not infinite, ...
// expected-error@+1 {{a scale must be positive, finite and normal in f32, but is INF}}
kvcache.scale_buffer @s : f32 = 0x7F800000 from override

// -----

// ... no NaN, ...
// expected-error@+1 {{a scale must be positive, finite and normal in f32, but is nan}}
kvcache.scale_buffer @s : f32 = 0x7FC00000 from override

// -----

// ... not subnormal, and every value of a per-head scale counts.
// expected-error@+1 {{a scale must be positive, finite and normal in f32, but is 9.999946e-41}}
kvcache.scale_buffer @s : f32 = [1.0, 1.0e-40] from override

// -----

// #kvcache.scale (C3)
// expected-error@+1 {{a scale in state 'checkpoint' with provenance 'checkpoint' needs the key it comes from}}
kvcache.scale_buffer @s : f32 checkpoint ""

// -----

// expected-error@+1 {{a scale in state 'static' with provenance 'checkpoint' needs the key it comes from}}
kvcache.scale_buffer @s : f32 = 1.0 from checkpoint

// -----

// expected-error@+1 {{a scale in state 'static' with provenance 'duplicate' needs the key it comes from}}
kvcache.scale_buffer @s : f32 = 1.0 from duplicate

// -----

// expected-error@+1 {{a scale in state 'static' with provenance 'maximum' needs the key it comes from}}
kvcache.scale_buffer @s : f32 = 1.0 from maximum

// -----

// expected-error@+1 {{a scale in state 'static' with provenance 'default' names no key, but has "a.key"}}
kvcache.scale_buffer @s : f32 = 1.0 from default "a.key"

// -----

// expected-error@+1 {{a scale in state 'static' with provenance 'override' names no key, but has "a.key"}}
kvcache.scale_buffer @s : f32 = 1.0 from override "a.key"

// -----

// expected-error@+1 {{expected 'checkpoint', 'default', 'duplicate', 'maximum' or 'override', but found 'nowhere'}}
kvcache.scale_buffer @s : f32 = 1.0 from nowhere

// -----

// !kvcache.cache (C1)
// expected-error@+1 {{KV heads and head dim must be positive, but are 0 and 64}}
func.func private @f(!kvcache.cache<0 x 64 x bf16>)

// -----

// expected-error@+1 {{KV heads and head dim must be positive, but are 2 and 0}}
func.func private @f(!kvcache.cache<2 x 0 x bf16>)

// -----

// !kvcache.cache (C2)
// expected-error@+1 {{a cache holds f8E4M3FN, f8E5M2, f8E4M3FNUZ, f16, bf16 or f32 (a latent one also fp8_ds_mla), not 'i8'}}
func.func private @f(!kvcache.cache<2 x 64 x i8>)

// -----

// expected-error@+1 {{a cache holds f8E4M3FN, f8E5M2, f8E4M3FNUZ, f16, bf16 or f32 (a latent one also fp8_ds_mla), not 'i32'}}
func.func private @f(!kvcache.cache<latent 512 + 64 x i32>)

// -----

// Rows of fp8_ds_mla without a rotary part do not exist.
// expected-error@+1 {{(a latent one also fp8_ds_mla), not 'i8'}}
func.func private @f(!kvcache.cache<1 x 576 x fp8_ds_mla>)

// -----

// !kvcache.cache (C3)
// expected-error@+1 {{a latent cache has one KV head and positive latent and rotary parts, but has 1 of 0 + 64}}
func.func private @f(!kvcache.cache<latent 0 + 64 x bf16>)

// -----

// expected-error@+1 {{a latent cache has one KV head and positive latent and rotary parts, but has 1 of 512 + -64}}
func.func private @f(!kvcache.cache<latent 512 + -64 x bf16>)

// -----

// expected-error@+1 {{a latent cache needs a rotary part}}
func.func private @f(!kvcache.cache<latent 512 + 0 x bf16>)

// -----

// !kvcache.cache (C4)
// expected-error@+1 {{the latent part of fp8_ds_mla rows must be a multiple of 128, but is 192}}
func.func private @f(!kvcache.cache<latent 192 + 64 x fp8_ds_mla>)

// -----

// scale_buffer (C1): another symbol table does not see it.
kvcache.scale_buffer @s : f32 dynamic
module {
  kvcache.cache_group @g page_size 16
  // expected-error@+1 {{expected @s to be a 'kvcache.scale_buffer', but there is no such symbol}}
  kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
}

// -----

// cache_group (C1)
// expected-error@+1 {{page size must be a positive power of two, but is 12}}
kvcache.cache_group @g page_size 12

// -----

// expected-error@+1 {{page size must be a positive power of two, but is 0}}
kvcache.cache_group @g page_size 0

// -----

// expected-error@+1 {{page size must be a positive power of two, but is -16}}
kvcache.cache_group @g page_size -16

// -----

// cache_group (C2)
// expected-error@+1 {{'max_tokens' must be positive, but is 0}}
kvcache.cache_group @g page_size 16 {max_tokens = 0 : i64}

// -----

// expected-error@+1 {{'max_sequences' must be positive, but is -1}}
kvcache.cache_group @g page_size 16 {max_sequences = -1 : i64}

// -----

// expected-error@+1 {{'max_pages_per_sequence' must be positive, but is 0}}
kvcache.cache_group @g page_size 16 {max_pages_per_sequence = 0 : i64}

// -----

// expected-error@+1 {{'num_pages' must be positive, but is 0}}
kvcache.cache_group @g page_size 16 {num_pages = 0 : i64}

// -----

// cache (C1)
kvcache.scale_buffer @s : f32 dynamic
// expected-error@+1 {{expected @g to be a 'kvcache.cache_group', but there is no such symbol}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)

// -----

kvcache.scale_buffer @s : f32 dynamic
// expected-error@+1 {{expected @s to be a 'kvcache.cache_group', but it is a 'kvcache.scale_buffer'}}
kvcache.cache @c of "layer" in @s : 2 x 64 x bf16 scales(@s, @s)

// -----

// cache (C2): of keys, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{expected @g to be a 'kvcache.scale_buffer', but it is a 'kvcache.cache_group'}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@g, @s)

// -----

// ... and of values.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{expected @missing to be a 'kvcache.scale_buffer', but there is no such symbol}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @missing)

// -----

// cache (C3)
kvcache.scale_buffer @s : f32 = [1.0, 2.0, 3.0] from override
kvcache.cache_group @g page_size 16
// expected-error@+1 {{per-head scale @s has 3 values; expected one for each of the 2 KV heads}}
kvcache.cache @c of "layer" in @g : 2 x 64 x f8E4M3FN scales(@s, @s)

// -----

// cache (C4)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{KV heads and head dim must be positive, but are 2 and -64}}
kvcache.cache @c of "layer" in @g : 2 x -64 x bf16 scales(@s, @s)

// -----

kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{expected layout 'nhd', 'hnd', 'packed' or 'strides', but found 'dhn'}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s) layout dhn

// -----

// cache (C5)
kvcache.scale_buffer @k : f32 dynamic
kvcache.scale_buffer @v : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{a latent row has one scale, but the scales are @k and @v}}
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@k, @v)

// -----

// cache (C6)
kvcache.scale_buffer @k : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{a latent cache has layout 'nhd', not 'packed'}}
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@k, @k) layout packed

// -----

// get_cache (C1)
kvcache.cache_group @g page_size 16
func.func @f() {
  // expected-error@+1 {{expected @g to be a 'kvcache.cache'}}
  %c = kvcache.get_cache @g : !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// get_cache (C2)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-note@+1 {{the cache is declared here}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f() {
  // expected-error@+1 {{result type '!kvcache.cache<2 x 64 x f16>' differs from the cache's '!kvcache.cache<2 x 64 x bf16>'}}
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x f16>
  return
}

// -----

// get_cache (C2): of one shard ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-note@+1 {{the cache is declared here}}
kvcache.cache @c of "layer" in @g : 4 x 64 x bf16 scales(@s, @s)
func.func @f() {
  // expected-error@+1 {{result type '!kvcache.cache<4 x 64 x bf16>' differs from the cache's '!kvcache.cache<2 x 64 x bf16>'}}
  %c = kvcache.get_cache @c shards 2 : !kvcache.cache<4 x 64 x bf16>
  return
}

// -----

// get_cache (C3)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 4 x 64 x bf16 scales(@s, @s)
func.func @f() {
  // expected-error@+1 {{expected a number of shards from 2 on that divides the 4 KV heads of @c, but found 3}}
  %c = kvcache.get_cache @c shards 3 : !kvcache.cache<1 x 64 x bf16>
  return
}

// -----

// ... and one shard is no shard.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 4 x 64 x bf16 scales(@s, @s)
func.func @f() {
  // expected-error@+1 {{expected a number of shards from 2 on that divides the 4 KV heads of @c, but found 1}}
  %c = kvcache.get_cache @c shards 1 : !kvcache.cache<4 x 64 x bf16>
  return
}

// -----

// cache (C7)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{expected at least 2 shards, but found 1}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s) {shards = 1 : i64}

// -----

// view_cache (C1): a cache, ...
kvcache.cache_group @g page_size 16
func.func @f(%p: memref<7x16x2x64xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{expected @nothing to be a 'kvcache.cache'}}
  %c = kvcache.view_cache @nothing pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// ... and its type.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-note@+1 {{the cache is declared here}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: memref<7x16x2x64xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{result type '!kvcache.cache<4 x 64 x bf16>' differs from the cache's '!kvcache.cache<2 x 64 x bf16>'}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<4 x 64 x bf16>
  return
}

// -----

// view_cache (C2): element type of K pages, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%k: memref<7x16x2x64xf16>, %p: memref<7x16x2x64xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{pages of @c must be memref<pages x 16 x 2 x 64 x 'bf16'>, but are 'memref<7x16x2x64xf16>'}}
  %c = kvcache.view_cache @c pages(%k, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x2x64xf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// ... page size of V pages, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: memref<7x16x2x64xbf16>, %v: memref<7x32x2x64xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{pages of @c must be memref<pages x 16 x 2 x 64 x 'bf16'>, but are 'memref<7x32x2x64xbf16>'}}
  %c = kvcache.view_cache @c pages(%p, %v) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x2x64xbf16>, memref<7x32x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// ... KV heads and head dim.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: memref<7x16x64x2xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{pages of @c must be memref<pages x 16 x 2 x 64 x 'bf16'>, but are 'memref<7x16x64x2xbf16>'}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x64x2xbf16>, memref<7x16x64x2xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// view_cache (C3): pages in NHD order for an HND cache.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s) layout hnd
func.func @f(%p: memref<7x16x2x64xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{stride 1 of pages is 128; layout 'hnd' of @c has 64}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// K of a packed cache without the values between its pages.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s) layout packed
func.func @f(%p: memref<7x16x2x64xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{stride 0 of pages is 2048; layout 'packed' of @c has 4096}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
#swizzle = affine_map<(p, t, h, d) -> (p, t mod 4, h, t floordiv 4, d)>
func.func @f(%p: memref<7x16x2x64xbf16, #swizzle>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{pages need a strided layout, but are 'memref<7x16x2x64xbf16,}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x2x64xbf16, #swizzle>, memref<7x16x2x64xbf16, #swizzle>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// view_cache (C4): query starts, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: memref<7x16x2x64xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<2xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{query_start has 2 entries; expected 3 for 2 lengths}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<2xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// ... and rows of the page table.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: memref<7x16x2x64xbf16>, %t: memref<1x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{the page table has 1 rows; expected 2, one for each length}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<1x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// load_scale (C1): a scale, ...
kvcache.cache_group @g page_size 16
func.func @f() -> f32 {
  // expected-error@+1 {{expected @g to be a 'kvcache.scale_buffer', but it is a 'kvcache.cache_group'}}
  %s = kvcache.load_scale @g : f32
  return %s : f32
}

// -----

// ... that is one number.
kvcache.scale_buffer @s : f32 = [1.0, 2.0] from override
func.func @f() -> f32 {
  // expected-error@+1 {{@s is per head; only a per-tensor scale is one value}}
  %s = kvcache.load_scale @s : f32
  return %s : f32
}

// -----

// calculate_scales (C1): of keys, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x256xbf16>, %k: tensor<?x256xbf16>, %v: tensor<?x2x64xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{key has 256 elements a token; the cache's row has 128}}
  kvcache.calculate_scales %q, %k, %v for %c : tensor<?x256xbf16>, tensor<?x256xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// ... and of values.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x256xbf16>, %k: tensor<?x128xbf16>, %v: tensor<?x2x32xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{value has 64 elements a token; the cache's row has 128}}
  kvcache.calculate_scales %q, %k, %v for %c : tensor<?x256xbf16>, tensor<?x128xbf16>, tensor<?x2x32xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// quantize (C1)
func.func @f(%x: tensor<4x64xbf16>, %s: f32) {
  // expected-error@+1 {{input 'tensor<4x64xbf16>' and result 'tensor<4x32xf8E4M3FN>' differ in shape}}
  %y = kvcache.quantize %x by %s : tensor<4x64xbf16> to tensor<4x32xf8E4M3FN>
  return
}

// -----

// dequantize (C1)
func.func @f(%x: tensor<?x64xf8E5M2>, %s: f32) {
  // expected-error@+1 {{input 'tensor<?x64xf8E5M2>' and result 'tensor<4x64xf32>' differ in shape}}
  %y = kvcache.dequantize %x by %s : tensor<?x64xf8E5M2> to tensor<4x64xf32>
  return
}

// -----

// cache type (C1): the head dim of values
// expected-error@+1 {{the head dim of values must be positive, but is 0}}
func.func private @f(!kvcache.cache<2 x 64 | 0 x bf16>)

// -----

// write (C2): values have the head dim of values.
func.func @f(%k: tensor<?x2x64xbf16>, %c: !kvcache.cache<2 x 64 | 32 x bf16>) {
  // expected-error@+1 {{rows of values must be [tokens, 2, 32] for '!kvcache.cache<2 x 64 | 32 x bf16>', but are 'tensor<?x2x64xbf16>'}}
  kvcache.write %k, %k to %c : tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, !kvcache.cache<2 x 64 | 32 x bf16>
  return
}

// -----

// paged_attention (C3): outputs have it, too.
func.func @f(%q: memref<8x4x64xbf16>, %c: !kvcache.cache<2 x 64 | 32 x bf16>) {
  // expected-error@+1 {{output 'memref<8x4x64xbf16>' must have the shape of the query 'memref<8x4x64xbf16>' with the head dim of values, 32}}
  kvcache.paged_attention %q over %c outs(%q) : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 | 32 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// view_cache (C2): pages of values ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "l" in @g : 2 x 64 | 32 x bf16 scales(@s, @s)
func.func @f(%p: memref<7x16x2x64xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %m: memref<8xi64>) {
  // expected-error@+1 {{pages of @c must be memref<pages x 16 x 2 x 32 x 'bf16'>, but are 'memref<7x16x2x64xbf16>'}}
  %h = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%m)
    : memref<7x16x2x64xbf16>, memref<7x16x2x64xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 | 32 x bf16>
  return
}

// -----

// ... and (C3) their strides: those of a packed page of both.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "l" in @g : 2 x 64 | 32 x bf16 scales(@s, @s) layout packed
func.func @f(%p: memref<7x16x2x64xbf16, strided<[3072, 128, 64, 1]>>, %v: memref<7x16x2x32xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %m: memref<8xi64>) {
  // expected-error@+1 {{stride 0 of pages is 1024; layout 'packed' of @c has 3072}}
  %h = kvcache.view_cache @c pages(%p, %v) page_table(%t) lengths(%l) query_start(%q) slots(%m)
    : memref<7x16x2x64xbf16, strided<[3072, 128, 64, 1]>>, memref<7x16x2x32xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 | 32 x bf16>
  return
}

// -----

// write (C1)
func.func @f(%k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{key 'tensor<?x2x64xbf16>' and value 'tensor<?x2x64xf16>' differ}}
  kvcache.write %k, %v to %c : tensor<?x2x64xbf16>, tensor<?x2x64xf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// write (C2): KV heads, ...
func.func @f(%k: tensor<?x4x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{rows must be [tokens, 2, 64] for '!kvcache.cache<2 x 64 x bf16>', but are 'tensor<?x4x64xbf16>'}}
  kvcache.write %k, %k to %c : tensor<?x4x64xbf16>, tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// ... and head dim.
func.func @f(%k: tensor<?x2x128xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{rows must be [tokens, 2, 64] for '!kvcache.cache<2 x 64 x bf16>', but are 'tensor<?x2x128xbf16>'}}
  kvcache.write %k, %k to %c : tensor<?x2x128xbf16>, tensor<?x2x128xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// paged_attention (C1): head dim, ...
func.func @f(%q: memref<8x4x128xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{queries must be [tokens, query heads, 64] for '!kvcache.cache<2 x 64 x bf16>', but are 'memref<8x4x128xbf16>'}}
  kvcache.paged_attention %q over %c outs(%q) : memref<8x4x128xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x128xbf16>
  return
}

// -----

// ... a known number of query heads, ...
func.func @f(%q: memref<8x?x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{queries must be [tokens, query heads, 64] for '!kvcache.cache<2 x 64 x bf16>', but are 'memref<8x?x64xbf16>'}}
  kvcache.paged_attention %q over %c outs(%q) : memref<8x?x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x?x64xbf16>
  return
}

// -----

// ... and some of them.
func.func @f(%q: memref<8x0x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{queries must be [tokens, query heads, 64] for '!kvcache.cache<2 x 64 x bf16>', but are 'memref<8x0x64xbf16>'}}
  kvcache.paged_attention %q over %c outs(%q) : memref<8x0x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x0x64xbf16>
  return
}

// -----

// paged_attention (C2)
func.func @f(%q: memref<8x5x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{the number of query heads, 5, is not a multiple of the cache's 2 KV heads}}
  kvcache.paged_attention %q over %c outs(%q) : memref<8x5x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x5x64xbf16>
  return
}

// -----

// paged_attention (C3)
func.func @f(%q: memref<8x4x64xbf16>, %o: memref<8x2x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{output 'memref<8x2x64xbf16>' must have the shape of the query 'memref<8x4x64xbf16>'}}
  kvcache.paged_attention %q over %c outs(%o) : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x2x64xbf16>
  return
}

// -----

// paged_attention (C4)
func.func @f(%q: memref<8x4x64xbf16>, %l: memref<4x8xf32>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{lse 'memref<4x8xf32>' must be [tokens, query heads] of the query 'memref<8x4x64xbf16>'}}
  kvcache.paged_attention %q over %c outs(%q, %l) : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>, memref<4x8xf32>
  return
}

// -----

// paged_attention (C5): the softmax scale is positive ...
func.func @f(%q: memref<8x4x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{'softmax_scale' must be positive and finite, but is 0.0}}
  kvcache.paged_attention %q over %c outs(%q) {softmax_scale = 0.0 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

func.func @f(%q: memref<8x4x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{'softmax_scale' must be positive and finite, but is -1.25}}
  kvcache.paged_attention %q over %c outs(%q) {softmax_scale = -0.125 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// ... and finite, ...
func.func @f(%q: memref<8x4x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{'softmax_scale' must be positive and finite, but is INF}}
  kvcache.paged_attention %q over %c outs(%q) {softmax_scale = 0x7FF0000000000000 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// ... so is the soft cap, ...
func.func @f(%q: memref<8x4x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{'soft_cap' must be positive and finite, but is nan}}
  kvcache.paged_attention %q over %c outs(%q) {soft_cap = 0x7FF8000000000000 : f64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// ... and a window has no negative size.
func.func @f(%q: memref<8x4x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{'window' must not be negative, but is -1}}
  kvcache.paged_attention %q over %c outs(%q) {window = -1 : i64} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

func.func @f(%q: memref<8x4x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{expected one output, or an output and an LSE, in 'outs', but found 3}}
  kvcache.paged_attention %q over %c outs(%q, %q, %q) : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// program (C1): buffers, ...
// expected-error@+1 {{argument 0 must be a memref, but is 'f32'}}
kvcache.program @p(%x: f32 {kvcache.name = "x", kvcache.role = #kvcache<role activation>}) {
}

// -----

// ... with a name ...
// expected-error@+1 {{argument 0 needs a 'kvcache.name' and a 'kvcache.role'}}
kvcache.program @p(%x: memref<8xf32> {kvcache.role = #kvcache<role activation>}) {
}

// -----

// ... and a role, ...
// expected-error@+1 {{argument 1 needs a 'kvcache.name' and a 'kvcache.role'}}
kvcache.program @p(%x: memref<8xf32> {kvcache.name = "x", kvcache.role = #kvcache<role activation>}, %y: memref<8xf32> {kvcache.name = "y"}) {
}

// -----

// ... and no name twice.
// expected-error@+1 {{two arguments have the name "x"}}
kvcache.program @p(%x: memref<8xf32> {kvcache.name = "x", kvcache.role = #kvcache<role activation>},
                   %y: memref<8xf32> {kvcache.name = "x", kvcache.role = #kvcache<role activation>}) {
}

// -----

// program (C2)
// expected-error@+1 {{holds only segments, but has a 'arith.constant'}}
kvcache.program @p() {
  // expected-note@+1 {{it is here}}
  %c = arith.constant 1 : i32
}

// -----

// program (C3)
// expected-error@+1 {{has no results, but its type has 1}}
kvcache.program @p(%x: memref<8xf32> {kvcache.name = "x", kvcache.role = #kvcache<role activation>}) -> i32 {
}

// -----

// program (C4)
// expected-error@+1 {{needs a positive 'batch_size' and a 'bucket_of' together}}
kvcache.program @p(%x: memref<8xf32> {kvcache.name = "x", kvcache.role = #kvcache<role activation>}) attributes {batch_size = 4 : i64} {
}

// -----

// expected-error@+1 {{needs a positive 'batch_size' and a 'bucket_of' together}}
kvcache.program @p(%x: memref<8xf32> {kvcache.name = "x", kvcache.role = #kvcache<role activation>}) attributes {batch_size = 0 : i64, bucket_of = @q} {
}

// -----

// segment (C1)
// expected-error@+1 {{expects parent op 'kvcache.program'}}
kvcache.segment @s {
}

// -----

// launch (C1): three entries of the grid ...
kvcache.program @p() {
  kvcache.segment @s {
    // expected-error@+1 {{'grid' needs three positive entries}}
    kvcache.launch @k of "f" grid [1, 1] block [128, 1, 1] shared 0 args() constants [] origins [] structure []
  }
}

// -----

// ... that are positive, ...
kvcache.program @p() {
  kvcache.segment @s {
    // expected-error@+1 {{'block' needs three positive entries}}
    kvcache.launch @k of "f" grid [1, 1, 1] block [128, 0, 1] shared 0 args() constants [] origins [] structure []
  }
}

// -----

// ... and a block of a size that exists.
kvcache.program @p() {
  kvcache.segment @s {
    // expected-error@+1 {{a block has at most 1024 threads, but this one has 2048}}
    kvcache.launch @k of "f" grid [1, 1, 1] block [128, 16, 1] shared 0 args() constants [] origins [] structure []
  }
}

// -----

// launch (C2)
kvcache.program @p() {
  kvcache.segment @s {
    // expected-error@+1 {{'shared' must not be negative, but is -1}}
    kvcache.launch @k of "f" grid [1, 1, 1] block [128, 1, 1] shared -1 args() constants [] origins [] structure []
  }
}

// -----

// launch (C3)
kvcache.program @p() {
  kvcache.segment @s {
    // expected-error@+1 {{has 2 constants but 1 origins}}
    kvcache.launch @k of "f" grid [1, 1, 1] block [128, 1, 1] shared 0 args() constants [8 : i32, 1.0 : f32] origins ["max_tokens"] structure []
  }
}

// -----

// launch (C4)
kvcache.program @p() {
  kvcache.segment @s {
    // expected-error@+1 {{constants must be f32, i32 or i64, but one is 1.000000e+00 : f64}}
    kvcache.launch @k of "f" grid [1, 1, 1] block [128, 1, 1] shared 0 args() constants [1.0 : f64] origins ["scale"] structure []
  }
}

// -----

// view_cache (C2): bytes of fp8_ds_mla rows.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x fp8_ds_mla scales(@s, @s)
func.func @f(%p: memref<7x16x1x576xi8>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{pages of @c must be memref<pages x 16 x 1 x 656 x 'i8'>, but are 'memref<7x16x1x576xi8>'}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x1x576xi8>, memref<7x16x1x576xi8>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<latent 512 + 64 x fp8_ds_mla>
  return
}

// -----

// view_cache (C5)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%p: memref<7x16x1x576xbf16>, %v: memref<7x16x1x576xbf16>, %t: memref<2x2xi32>, %l: memref<2xi32>, %q: memref<3xi32>, %s: memref<8xi64>) {
  // expected-error@+1 {{a row of the latent cache @c is both key and value; give its pages twice}}
  %c = kvcache.view_cache @c pages(%p, %v) page_table(%t) lengths(%l) query_start(%q) slots(%s)
    : memref<7x16x1x576xbf16>, memref<7x16x1x576xbf16>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64>
    -> !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// calculate_scales (C1): the parts of a latent row.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x256xbf16>, %k: tensor<?x512xbf16>, %v: tensor<?x512xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{value has 512 elements a token; the cache's row has 64}}
  kvcache.calculate_scales %q, %k, %v for %c : tensor<?x256xbf16>, tensor<?x512xbf16>, tensor<?x512xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// write (C3)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%k: tensor<?x1x576xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{is latent; use 'kvcache.write_latent'}}
  kvcache.write %k, %k to %c : tensor<?x1x576xbf16>, tensor<?x1x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// paged_attention (C6)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x576xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{is latent; use 'kvcache.mla_attention'}}
  %o = kvcache.paged_attention %q over %c outs(%q) : tensor<?x4x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x4x576xbf16>
  return
}

// -----

// write_latent (C1)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%l: tensor<?x512xbf16>, %r: tensor<?x64xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{holds keys and values; use 'kvcache.write'}}
  kvcache.write_latent %l, %r to %c : tensor<?x512xbf16>, tensor<?x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// write_latent (C2): the latent part, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%l: tensor<?x256xbf16>, %r: tensor<?x64xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{rows must be [tokens, 512] and [tokens, 64] for '!kvcache.cache<latent 512 + 64 x bf16>', but are 'tensor<?x256xbf16>' and 'tensor<?x64xbf16>'}}
  kvcache.write_latent %l, %r to %c : tensor<?x256xbf16>, tensor<?x64xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// ... and the rotary part.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%l: tensor<?x512xbf16>, %r: tensor<?x32xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{but are 'tensor<?x512xbf16>' and 'tensor<?x32xbf16>'}}
  kvcache.write_latent %l, %r to %c : tensor<?x512xbf16>, tensor<?x32xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// write_latent (C3): element type, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%l: tensor<?x512xbf16>, %r: tensor<?x64xf32>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{latent part 'tensor<?x512xbf16>' and rotary part 'tensor<?x64xf32>' differ in element type or tokens}}
  kvcache.write_latent %l, %r to %c : tensor<?x512xbf16>, tensor<?x64xf32>, !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// ... and tokens.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%l: tensor<7x512xbf16>, %r: tensor<8x64xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{latent part 'tensor<7x512xbf16>' and rotary part 'tensor<8x64xbf16>' differ in element type or tokens}}
  kvcache.write_latent %l, %r to %c : tensor<7x512xbf16>, tensor<8x64xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// mla_attention (C1)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x64xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{holds keys and values; use 'kvcache.paged_attention'}}
  %o = kvcache.mla_attention %q over %c outs(%q) : tensor<?x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> tensor<?x4x64xbf16>
  return
}

// -----

// mla_attention (C2): width, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x512xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{queries must be [tokens, query heads, 576] for '!kvcache.cache<latent 512 + 64 x bf16>', but are 'tensor<?x4x512xbf16>'}}
  %o = kvcache.mla_attention %q over %c outs(%q) : tensor<?x4x512xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x4x512xbf16>
  return
}

// -----

// ... heads that are known, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x?x576xbf16>, %o: tensor<?x?x512xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{queries must be [tokens, query heads, 576]}}
  %a = kvcache.mla_attention %q over %c outs(%o) : tensor<?x?x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x?x512xbf16>
  return
}

// -----

// ... and some of them.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x0x576xbf16>, %o: tensor<?x0x512xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{queries must be [tokens, query heads, 576]}}
  %a = kvcache.mla_attention %q over %c outs(%o) : tensor<?x0x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x0x512xbf16>
  return
}

// -----

// mla_attention (C3): width, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x576xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{output must be [tokens, query heads, 512] of the query 'tensor<?x4x576xbf16>', but is 'tensor<?x4x576xbf16>'}}
  %o = kvcache.mla_attention %q over %c outs(%q) : tensor<?x4x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x4x576xbf16>
  return
}

// -----

// ... and heads.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x576xbf16>, %o: tensor<?x2x512xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{output must be [tokens, query heads, 512]}}
  %a = kvcache.mla_attention %q over %c outs(%o) : tensor<?x4x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x2x512xbf16>
  return
}

// -----

// mla_attention (C4)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x576xbf16>, %o: tensor<?x4x512xbf16>, %lse: tensor<?x2xf32>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{lse 'tensor<?x2xf32>' must be [tokens, query heads] of the query 'tensor<?x4x576xbf16>'}}
  %a:2 = kvcache.mla_attention %q over %c outs(%o, %lse) : tensor<?x4x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x4x512xbf16>, tensor<?x2xf32>
  return
}

// -----

// mla_attention (C5)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x576xbf16>, %o: tensor<?x4x512xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{'softmax_scale' must be positive and finite, but is -1.0}}
  %a = kvcache.mla_attention %q over %c outs(%o) {softmax_scale = -1.0} : tensor<?x4x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x4x512xbf16>
  return
}

// -----

// mla_attention (C6): FP8 queries have a scale, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x576xf8E5M2>, %o: tensor<?x4x512xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{queries of 'f8E5M2' needs a 'q_scale'}}
  %a = kvcache.mla_attention %q over %c outs(%o) {softmax_scale = 1.0} : tensor<?x4x576xf8E5M2>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x4x512xbf16>
  return
}

// -----

// ... and so has an FP8 output, others none
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x576xbf16>, %o: tensor<?x4x512xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{an output of 'bf16' has no 'o_scale'}}
  %a = kvcache.mla_attention %q over %c outs(%o) {o_scale = @s} : tensor<?x4x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x4x512xbf16>
  return
}

// -----

// mla_attention (C7): a scale, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
func.func @f(%q: tensor<?x4x576xf8E4M3FN>, %o: tensor<?x4x512xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{expected @g to be a 'kvcache.scale_buffer'}}
  %a = kvcache.mla_attention %q over %c outs(%o) {q_scale = @g} : tensor<?x4x576xf8E4M3FN>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x4x512xbf16>
  return
}

// -----

// ... and one for all heads
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : latent 512 + 64 x bf16 scales(@s, @s)
kvcache.scale_buffer @h : f32 = [0.5, 2.0] from override
func.func @f(%q: tensor<?x4x576xbf16>, %o: tensor<?x4x512xf8E4M3FN>) {
  %c = kvcache.get_cache @c : !kvcache.cache<latent 512 + 64 x bf16>
  // expected-error@+1 {{@h is per head; queries and outputs have one scale}}
  %a = kvcache.mla_attention %q over %c outs(%o) {o_scale = @h} : tensor<?x4x576xbf16>, !kvcache.cache<latent 512 + 64 x bf16> -> tensor<?x4x512xf8E4M3FN>
  return
}

// -----

// with_pages (C1): a cache, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: tensor<7x16x2x64xbf16>, %x: tensor<7x16x2x64xf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %q: tensor<3xi32>, %s: tensor<8xi64>) {
  // expected-error@+1 {{expected @nothing to be a 'kvcache.cache'}}
  %r:2 = kvcache.with_pages @nothing pages(%p, %p : tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>) page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%q : tensor<3xi32>) slots(%s : tensor<8xi64>)
    -> tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x bf16>):
    kvcache.yield
  }
  return
}

// -----

// ... its type, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-note@+1 {{the cache is declared here}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: tensor<7x16x2x64xbf16>, %x: tensor<7x16x2x64xf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %q: tensor<3xi32>, %s: tensor<8xi64>) {
  // expected-error@+1 {{handle type '!kvcache.cache<4 x 64 x bf16>' differs from the cache's '!kvcache.cache<2 x 64 x bf16>'}}
  %r:2 = kvcache.with_pages @c pages(%p, %p : tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>) page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%q : tensor<3xi32>) slots(%s : tensor<8xi64>)
    -> tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16> {
  ^bb0(%c: !kvcache.cache<4 x 64 x bf16>):
    kvcache.yield
  }
  return
}

// -----

// ... and no other argument.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: tensor<7x16x2x64xbf16>, %x: tensor<7x16x2x64xf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %q: tensor<3xi32>, %s: tensor<8xi64>) {
  // expected-error@+1 {{the region has 2 arguments; expected one, the handle}}
  %r:2 = kvcache.with_pages @c pages(%p, %p : tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>) page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%q : tensor<3xi32>) slots(%s : tensor<8xi64>)
    -> tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x bf16>, %d: !kvcache.cache<2 x 64 x bf16>):
    kvcache.yield
  }
  return
}

// -----

// with_pages (C2): two pages, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: tensor<7x16x2x64xbf16>, %x: tensor<7x16x2x64xf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %q: tensor<3xi32>, %s: tensor<8xi64>) {
  // expected-error@+1 {{has 1 pages; expected 2 for '!kvcache.cache<2 x 64 x bf16>'}}
  %r:1 = kvcache.with_pages @c pages(%p : tensor<7x16x2x64xbf16>) page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%q : tensor<3xi32>) slots(%s : tensor<8xi64>)
    -> tensor<7x16x2x64xbf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x bf16>):
    kvcache.yield
  }
  return
}

// -----

// ... of the cache's element type and shape.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: tensor<7x16x2x64xbf16>, %x: tensor<7x16x2x64xf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %q: tensor<3xi32>, %s: tensor<8xi64>) {
  // expected-error@+1 {{pages of @c must be tensor<pages x 16 x 2 x 64 x 'bf16'>, but are 'tensor<7x16x2x64xf16>'}}
  %r:2 = kvcache.with_pages @c pages(%p, %x : tensor<7x16x2x64xbf16>, tensor<7x16x2x64xf16>) page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%q : tensor<3xi32>) slots(%s : tensor<8xi64>)
    -> tensor<7x16x2x64xbf16>, tensor<7x16x2x64xf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x bf16>):
    kvcache.yield
  }
  return
}

// -----

// with_pages (C3): query starts, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: tensor<7x16x2x64xbf16>, %x: tensor<7x16x2x64xf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %q: tensor<4xi32>, %s: tensor<8xi64>) {
  // expected-error@+1 {{query_start has 4 entries; expected 3 for 2 lengths}}
  %r:2 = kvcache.with_pages @c pages(%p, %p : tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>) page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%q : tensor<4xi32>) slots(%s : tensor<8xi64>)
    -> tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x bf16>):
    kvcache.yield
  }
  return
}

// -----

// ... and rows of the page table.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: tensor<7x16x2x64xbf16>, %x: tensor<7x16x2x64xf16>, %t: tensor<3x2xi32>, %l: tensor<2xi32>, %q: tensor<3xi32>, %s: tensor<8xi64>) {
  // expected-error@+1 {{the page table has 3 rows; expected 2, one for each length}}
  %r:2 = kvcache.with_pages @c pages(%p, %p : tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>) page_table(%t : tensor<3x2xi32>) lengths(%l : tensor<2xi32>) query_start(%q : tensor<3xi32>) slots(%s : tensor<8xi64>)
    -> tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x bf16>):
    kvcache.yield
  }
  return
}

// -----

// with_pages (C4): results are pages and what is yielded.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: tensor<7x16x2x64xbf16>, %x: tensor<7x16x2x64xf16>, %t: tensor<2x2xi32>, %l: tensor<2xi32>, %q: tensor<3xi32>, %s: tensor<8xi64>) {
  // expected-error@+1 {{has results of types 'tensor<7x16x2x64xbf16>', 'tensor<7x16x2x64xbf16>'; expected those of the pages and of what is yielded, 'tensor<7x16x2x64xbf16>', 'tensor<7x16x2x64xbf16>', 'tensor<8xi64>'}}
  %r:2 = kvcache.with_pages @c pages(%p, %p : tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16>) page_table(%t : tensor<2x2xi32>) lengths(%l : tensor<2xi32>) query_start(%q : tensor<3xi32>) slots(%s : tensor<8xi64>)
    -> tensor<7x16x2x64xbf16>, tensor<7x16x2x64xbf16> {
  ^bb0(%c: !kvcache.cache<2 x 64 x bf16>):
    kvcache.yield %s : tensor<8xi64>
  }
  return
}

// -----

// yield (C1): only in a with_pages.
func.func @f() {
  // expected-error@+1 {{expects parent op 'kvcache.with_pages'}}
  kvcache.yield
}

// -----

// quantize (C2): a tensor gives a result, ...
func.func @f(%x: tensor<4x64xbf16>, %s: f32, %y: memref<4x64xf8E4M3FN>) {
  // expected-error@+1 {{on 'tensor<4x64xbf16>' must have a result and no 'outs'}}
  kvcache.quantize %x by %s outs(%y) : tensor<4x64xbf16> to memref<4x64xf8E4M3FN>
  return
}

// -----

// dequantize (C2): ... and a memref has 'outs'
func.func @f(%x: memref<4x64xf8E5M2>, %s: f32) {
  // expected-error@+1 {{on 'memref<4x64xf8E5M2>' must have 'outs' and no result}}
  %y = kvcache.dequantize %x by %s : memref<4x64xf8E5M2> to tensor<4x64xf32>
  return
}

// -----

// paged_attention (C7): FP8 queries have a scale, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: memref<8x4x64xf8E4M3FN>, %o: memref<8x4x64xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{queries of 'f8E4M3FN' needs a 'q_scale'}}
  kvcache.paged_attention %q over %c outs(%o) : memref<8x4x64xf8E4M3FN>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// ... others have none, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: memref<8x4x64xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{queries of 'bf16' has no 'q_scale'}}
  kvcache.paged_attention %q over %c outs(%q) {q_scale = @s} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// ... nor do outputs
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: memref<8x4x64xbf16>, %o: memref<8x4x64xf8E5M2>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{an output of 'f8E5M2' needs a 'o_scale'}}
  kvcache.paged_attention %q over %c outs(%o) : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xf8E5M2>
  return
}

// -----

// paged_attention (C8): a scale, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: memref<8x4x64xf8E4M3FN>, %o: memref<8x4x64xbf16>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{expected @g to be a 'kvcache.scale_buffer'}}
  kvcache.paged_attention %q over %c outs(%o) {q_scale = @g} : memref<8x4x64xf8E4M3FN>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// ... and one for all heads
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
kvcache.scale_buffer @h : f32 = [0.5, 2.0] from override
func.func @f(%q: memref<8x4x64xbf16>, %o: memref<8x4x64xf8E4M3FN>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{@h is per head; queries and outputs have one scale}}
  kvcache.paged_attention %q over %c outs(%o) {o_scale = @h} : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xf8E4M3FN>
  return
}

// -----

// paged_attention (C9)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%q: memref<8x4x64xbf16>, %a: memref<2xf32>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{'alibi_slopes' must have one value for each of the 4 query heads, but is 'memref<2xf32>'}}
  kvcache.paged_attention %q over %c outs(%q) alibi_slopes(%a : memref<2xf32>) : memref<8x4x64xbf16>, !kvcache.cache<2 x 64 x bf16> -> memref<8x4x64xbf16>
  return
}

// -----

// write (C4): an even rotary dim, ...
func.func @f(%k: tensor<8x2x64xbf16>, %t: tensor<40x33xf32>, %p: tensor<8xi64>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{rope table must be [positions, up to 64] with an even rotary dim, but is 'tensor<40x33xf32>'}}
  kvcache.write %k, %k to %c rope(%t at %p : tensor<40x33xf32>, tensor<8xi64>) : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// ... up to the head dim, ...
func.func @f(%k: tensor<8x2x64xbf16>, %t: tensor<40x66xf32>, %p: tensor<8xi64>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{rope table must be [positions, up to 64] with an even rotary dim, but is 'tensor<40x66xf32>'}}
  kvcache.write %k, %k to %c rope(%t at %p : tensor<40x66xf32>, tensor<8xi64>) : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// ... and a position.
func.func @f(%k: tensor<8x2x64xbf16>, %t: tensor<0x64xf32>, %p: tensor<8xi64>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{rope table must be [positions, up to 64] with an even rotary dim, but is 'tensor<0x64xf32>'}}
  kvcache.write %k, %k to %c rope(%t at %p : tensor<0x64xf32>, tensor<8xi64>) : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// write (C5)
func.func @f(%k: tensor<8x2x64xbf16>, %t: tensor<40x64xf32>, %p: tensor<7xi64>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{has 7 positions for 8 rows}}
  kvcache.write %k, %k to %c rope(%t at %p : tensor<40x64xf32>, tensor<7xi64>) : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// write (C6)
func.func @f(%k: tensor<8x2x64xbf16>, %c: !kvcache.cache<2 x 64 x bf16>) {
  // expected-error@+1 {{has 'rope_interleaved', but no 'rope' table}}
  kvcache.write %k, %k to %c {rope_interleaved} : tensor<8x2x64xbf16>, tensor<8x2x64xbf16>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// write_latent (C4)
func.func @f(%l: tensor<8x512xbf16>, %r: tensor<8x64xbf16>, %t: tensor<40x32xf32>, %p: tensor<8xi64>, %c: !kvcache.cache<latent 512 + 64 x bf16>) {
  // expected-error@+1 {{rope table must be [positions, 64] with an even rotary dim, but is 'tensor<40x32xf32>'}}
  kvcache.write_latent %l, %r to %c rope(%t at %p : tensor<40x32xf32>, tensor<8xi64>) : tensor<8x512xbf16>, tensor<8x64xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// write_latent (C5)
func.func @f(%l: tensor<8x512xbf16>, %r: tensor<8x64xbf16>, %t: tensor<40x64xf32>, %p: tensor<9xi64>, %c: !kvcache.cache<latent 512 + 64 x bf16>) {
  // expected-error@+1 {{has 9 positions for 8 rows}}
  kvcache.write_latent %l, %r to %c rope(%t at %p : tensor<40x64xf32>, tensor<9xi64>) : tensor<8x512xbf16>, tensor<8x64xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// write_latent (C6)
func.func @f(%l: tensor<8x512xbf16>, %r: tensor<8x64xbf16>, %c: !kvcache.cache<latent 512 + 64 x bf16>) {
  // expected-error@+1 {{has 'rope_interleaved', but no 'rope' table}}
  kvcache.write_latent %l, %r to %c {rope_interleaved} : tensor<8x512xbf16>, tensor<8x64xbf16>, !kvcache.cache<latent 512 + 64 x bf16>
  return
}

// -----

// merge_states (C1): of outputs, ...
func.func @f(%a: memref<8x4x64xbf16>, %b: memref<8x4x64xf16>, %l: memref<8x4xf32>) {
  // expected-error@+1 {{failed to verify that all of {a, b, out} have same type}}
  "kvcache.merge_states"(%a, %l, %b, %l, %a, %l) : (memref<8x4x64xbf16>, memref<8x4xf32>, memref<8x4x64xf16>, memref<8x4xf32>, memref<8x4x64xbf16>, memref<8x4xf32>) -> ()
  return
}

// -----

// ... and of LSEs
func.func @f(%a: memref<8x4x64xbf16>, %b: memref<8x4x64xbf16>, %l: memref<8x4xf32>, %m: memref<8x?xf32>) {
  // expected-error@+1 {{failed to verify that all of {lse_a, lse_b, lse} have same type}}
  "kvcache.merge_states"(%a, %l, %a, %m, %b, %l) : (memref<8x4x64xbf16>, memref<8x4xf32>, memref<8x4x64xbf16>, memref<8x?xf32>, memref<8x4x64xbf16>, memref<8x4xf32>) -> ()
  return
}

// -----

// merge_states (C2)
func.func @f(%a: memref<8x4x64xbf16>, %o: memref<8x4x64xbf16>, %l: memref<8x2xf32>, %m: memref<8x2xf32>) {
  // expected-error@+1 {{lse 'memref<8x2xf32>' must be [tokens, query heads] of the partial 'memref<8x4x64xbf16>'}}
  kvcache.merge_states %a, %l with %a, %l outs(%o, %m) : memref<8x4x64xbf16>, memref<8x2xf32>
  return
}

// -----

// merge_states (C3): the output, ...
func.func @f(%a: memref<8x4x64xbf16>, %b: memref<8x4x64xbf16>, %l: memref<8x4xf32>, %m: memref<8x4xf32>) {
  // expected-error@+1 {{the output is also that of a partial; expected a buffer of its own}}
  kvcache.merge_states %a, %l with %b, %l outs(%b, %m) : memref<8x4x64xbf16>, memref<8x4xf32>
  return
}

// -----

// ... and the LSE
func.func @f(%a: memref<8x4x64xbf16>, %b: memref<8x4x64xbf16>, %l: memref<8x4xf32>) {
  // expected-error@+1 {{the lse is also that of a partial; expected a buffer of its own}}
  kvcache.merge_states %a, %l with %a, %l outs(%b, %l) : memref<8x4x64xbf16>, memref<8x4xf32>
  return
}

// -----

// copy_pages (C1)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s)
func.func @f(%p: memref<8x3xi64>) {
  %c = kvcache.get_cache @c : !kvcache.cache<2 x 64 x bf16>
  // expected-error@+1 {{pairs must be [pairs, 2], but are 'memref<8x3xi64>'}}
  kvcache.copy_pages %p in %c : memref<8x3xi64>, !kvcache.cache<2 x 64 x bf16>
  return
}

// -----

// cache (C8): strides without the layout, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{needs three 'strides', of page, token and head, just when its layout is 'strides'}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s) layout hnd {strides = array<i64: 2560, 160, 80>}

// -----

// ... and as many
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{needs three 'strides', of page, token and head, just when its layout is 'strides'}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s) layout strides [2560, 160]

// -----

// cache (C9): of heads, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{has strides [2560, 160, 63] of page, token and head, with which rows of '!kvcache.cache<2 x 64 x bf16>' in pages of 16 tokens overlap}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s) layout strides [2560, 160, 63]

// -----

// ... of pages, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{has strides [2543, 160, 80] of page, token and head}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s) layout strides [2543, 160, 80]

// -----

// ... and backwards
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{has strides [2560, -160, 80] of page, token and head}}
kvcache.cache @c of "layer" in @g : 2 x 64 x bf16 scales(@s, @s) layout strides [2560, -160, 80]

// -----

// cache (C10): elements, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{'token_scales' need keys and values of f8E4M3FN, but the cache is '!kvcache.cache<2 x 64 x f8E5M2>'}}
kvcache.cache @c of "layer" in @g : 2 x 64 x f8E5M2 scales(@s, @s) token_scales side

// -----

// ... and heads.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{'token_scales' need keys and values of f8E4M3FN, but the cache is '!kvcache.cache<latent 512 + 64 x f8E4M3FN>'}}
kvcache.cache @c of "layer" in @g : latent 512 + 64 x f8E4M3FN scales(@s, @s) token_scales side

// -----

// view_cache (C6): scales that are missing, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x f8E4M3FN scales(@s, @s) token_scales side
func.func @f(%p: memref<7x16x2x64xf8E4M3FN>, %s: memref<7x16x2xf32>, %b: memref<7x16x4xf32>, %t: memref<2x2xi32>, %n: memref<2xi32>,
             %q: memref<3xi32>, %m: memref<8xi64>) {
  // expected-error@+1 {{needs the token scales of @c, two 'memref<?x16x2xf32>'}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%n) query_start(%q) slots(%m)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

// ... of other heads, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x f8E4M3FN scales(@s, @s) token_scales side
func.func @f(%p: memref<7x16x2x64xf8E4M3FN>, %s: memref<7x16x2xf32>, %b: memref<7x16x4xf32>, %t: memref<2x2xi32>, %n: memref<2xi32>,
             %q: memref<3xi32>, %m: memref<8xi64>) {
  // expected-error@+1 {{needs the token scales of @c, two 'memref<?x16x2xf32>'}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%n) query_start(%q) slots(%m) token_scales(%s, %b : memref<7x16x2xf32>, memref<7x16x4xf32>)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

// ... or that the cache does not have.
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x f8E4M3FN scales(@s, @s)
func.func @f(%p: memref<7x16x2x64xf8E4M3FN>, %s: memref<7x16x2xf32>, %b: memref<7x16x4xf32>, %t: memref<2x2xi32>, %n: memref<2xi32>,
             %q: memref<3xi32>, %m: memref<8xi64>) {
  // expected-error@+1 {{@c has no token scales}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%n) query_start(%q) slots(%m) token_scales(%s, %s : memref<7x16x2xf32>, memref<7x16x2xf32>)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

// with_pages (C5)
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x f8E4M3FN scales(@s, @s) token_scales side
func.func @f(%p: tensor<7x16x2x64xf8E4M3FN>, %t: tensor<2x2xi32>, %n: tensor<2xi32>, %q: tensor<3xi32>, %m: tensor<8xi64>) {
  // expected-error@+1 {{has no room for the token scales of @c; use 'kvcache.get_cache', whose memory is no value, 'token_scales inline', or a cache of fp8}}
  %a, %b = kvcache.with_pages @c pages(%p, %p : tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN>) page_table(%t : tensor<2x2xi32>)
    lengths(%n : tensor<2xi32>) query_start(%q : tensor<3xi32>) slots(%m : tensor<8xi64>) -> tensor<7x16x2x64xf8E4M3FN>, tensor<7x16x2x64xf8E4M3FN> {
  ^bb0(%h: !kvcache.cache<2 x 64 x f8E4M3FN>):
    kvcache.yield
  }
  return
}

// -----

// cache (C9): rows that end in their scale are four bytes longer
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
// expected-error@+1 {{has strides [2048, 128, 64] of page, token and head, with which rows of '!kvcache.cache<2 x 64 x f8E4M3FN>' and their scales in pages of 16 tokens overlap}}
kvcache.cache @c of "layer" in @g : 2 x 64 x f8E4M3FN scales(@s, @s) layout strides [2048, 128, 64] token_scales inline

// -----

// view_cache (C2): such pages are bytes, ...
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x f8E4M3FN scales(@s, @s) token_scales inline
func.func @f(%p: memref<7x16x2x64xf8E4M3FN>, %t: memref<2x2xi32>, %n: memref<2xi32>, %q: memref<3xi32>, %m: memref<8xi64>) {
  // expected-error@+1 {{pages of @c must be memref<pages x 16 x 2 x 68 x 'i8'>, but are 'memref<7x16x2x64xf8E4M3FN>'}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%n) query_start(%q) slots(%m)
    : memref<7x16x2x64xf8E4M3FN>, memref<7x16x2x64xf8E4M3FN>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}

// -----

// ... and have no side tensors (C6).
kvcache.scale_buffer @s : f32 dynamic
kvcache.cache_group @g page_size 16
kvcache.cache @c of "layer" in @g : 2 x 64 x f8E4M3FN scales(@s, @s) token_scales inline
func.func @f(%p: memref<7x16x2x68xi8>, %s: memref<7x16x2xf32>, %t: memref<2x2xi32>, %n: memref<2xi32>, %q: memref<3xi32>, %m: memref<8xi64>) {
  // expected-error@+1 {{@c has no token scales but in its rows}}
  %c = kvcache.view_cache @c pages(%p, %p) page_table(%t) lengths(%n) query_start(%q) slots(%m) token_scales(%s, %s : memref<7x16x2xf32>, memref<7x16x2xf32>)
    : memref<7x16x2x68xi8>, memref<7x16x2x68xi8>, memref<2x2xi32>, memref<2xi32>, memref<3xi32>, memref<8xi64> -> !kvcache.cache<2 x 64 x f8E4M3FN>
  return
}
