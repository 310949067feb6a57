// One layer of MLA through the passes: one row is key and value, so there is
// one scale and one buffer of pages.

// RUN: kvcache-opt %s --one-shot-bufferize="bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map" | FileCheck %s --check-prefix=BUFFERS
// RUN: kvcache-opt %s --kvcache-caches-to-arguments | FileCheck %s --check-prefix=ARGUMENTS
// RUN: kvcache-opt %s --kvcache-form-programs | FileCheck %s --check-prefix=PROGRAM
// RUN: kvcache-opt %s --kvcache-resolve-cache-types=kv-cache-dtype=fp8_ds_mla --kvcache-form-programs | FileCheck %s --check-prefix=TILES
// RUN: kvcache-opt %s --kvcache-apply-model-config=checkpoint=%inputs/checkpoints/mla_deepseek | FileCheck %s --check-prefix=CONFIG
// RUN: not kvcache-opt %s --kvcache-apply-model-config=checkpoint=%inputs/checkpoints/modelopt_fp8 2>&1 | FileCheck %s --check-prefix=OTHER

kvcache.scale_buffer @layer0.k : f32 = 1.25e-2 from override
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 2, max_sequences = 2, max_tokens = 8, num_pages = 7}
// TILES: kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : latent 512 + 64 x fp8_ds_mla scales(@layer0.k, @layer0.k)
kvcache.cache @layer0 of "model.layers.0.self_attn.attn" in @full : latent 512 + 64 x f8E4M3FN scales(@layer0.k, @layer0.k)

// The result takes the place of the output that it starts from.
// BUFFERS-LABEL: func.func @main(
// BUFFERS-SAME:    %[[L:[a-z0-9]+]]: memref<?x512xbf16>, %[[R:[a-z0-9]+]]: memref<?x64xbf16>, %[[Q:[a-z0-9]+]]: memref<?x2x576xbf16>, %[[O:[a-z0-9]+]]: memref<?x2x512xbf16>)
// BUFFERS:         %[[C:.*]] = kvcache.get_cache @layer0
// BUFFERS-NEXT:    kvcache.write_latent %[[L]], %[[R]] to %[[C]] : memref<?x512xbf16>, memref<?x64xbf16>
// BUFFERS-NEXT:    kvcache.mla_attention %[[Q]] over %[[C]] outs(%[[O]]) : memref<?x2x576xbf16>
// BUFFERS-NEXT:    return %[[O]]

// ARGUMENTS-LABEL: func.func @main(
// ARGUMENTS-SAME:    %[[P:[a-z0-9]+]]: memref<7x16x1x576xf8E4M3FN, strided<[9216, 576, 576, 1], offset: ?>> {kvcache.name = "layer0.kv_cache", kvcache.role = #kvcache<role cache>}, %[[T:[a-z0-9]+]]: memref<2x2xi32>
// ARGUMENTS:         kvcache.view_cache @layer0 pages(%[[P]], %[[P]]) page_table(%[[T]])

// PROGRAM-LABEL: kvcache.program @kvcache.main(
// PROGRAM-SAME:    %[[P:[a-z0-9]+]]: memref<7x16x1x576xf8E4M3FN, strided<[9216, 576, 576, 1], offset: ?>> {kvcache.name = "layer0.kv_cache", kvcache.role = #kvcache<role cache>}, %{{[a-z0-9]+}}: memref<2x2xi32> {kvcache.name = "page_table"
// PROGRAM-SAME:    %[[L:[a-z0-9]+]]: memref<?x512xbf16> {kvcache.name = "layer0.latent", kvcache.role = #kvcache<role activation>}, %[[R:[a-z0-9]+]]: memref<?x64xbf16> {kvcache.name = "layer0.rope", kvcache.role = #kvcache<role activation>}
// PROGRAM-SAME:    %[[Q:[a-z0-9]+]]: memref<?x2x576xbf16> {kvcache.name = "layer0.query", kvcache.role = #kvcache<role activation>}, %[[O:[a-z0-9]+]]: memref<?x2x512xbf16> {kvcache.name = "layer0.output"
// PROGRAM:           %[[C:.*]] = kvcache.view_cache @layer0 pages(%[[P]], %[[P]])
// PROGRAM:           kvcache.write_latent %[[L]], %[[R]] to %[[C]]
// PROGRAM-NEXT:      kvcache.mla_attention %[[Q]] over %[[C]] outs(%[[O]])

// TILES-LABEL: kvcache.program @kvcache.main(
// TILES-SAME:    memref<7x16x1x656xi8, strided<[10496, 656, 656, 1], offset: ?>>

// (64 + 64)^-0.5, of the widths that queries have before absorption.
// CONFIG: kvcache.mla_attention {{.*}} {kvcache.softmax_scale_from = "{{.*}}qk_nope_head_dim{{.*}}", softmax_scale = 0.088388347648318447 : f64}

// OTHER: error: layer model.layers.0.self_attn.attn: the graph has a latent cache (MLA), but the config says that its kind is 'attention'

func.func @main(%l: tensor<?x512xbf16>, %r: tensor<?x64xbf16>, %q: tensor<?x2x576xbf16>, %out: tensor<?x2x512xbf16>) -> tensor<?x2x512xbf16> {
  %c = kvcache.get_cache @layer0 : !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  kvcache.write_latent %l, %r to %c : tensor<?x512xbf16>, tensor<?x64xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN>
  %o = kvcache.mla_attention %q over %c outs(%out)
    : tensor<?x2x576xbf16>, !kvcache.cache<latent 512 + 64 x f8E4M3FN> -> tensor<?x2x512xbf16>
  return %o : tensor<?x2x512xbf16>
}
