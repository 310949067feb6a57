// RUN: kvcache-opt %s --split-input-file --verify-diagnostics --kvcache-verify-capturable

// Launches planned on the host for the lengths of one step: the grid has the
// splits, rows or sequences that were live, or a constant says how many.

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
// expected-note @below {{cause: its grid is [2, 4, 3], but the capacities give [2, 4, 4]: it was planned for the lengths of one step}}
// expected-note @below {{cause: its grid is [2, 1, 4], but the capacities give [2, 4, 4]}}
// expected-note @below {{cause: its max_sequences is 1, but the capacity is 2}}
// expected-note @below {{cause: its max_tokens is 5, but the capacity is 8}}
// expected-note @below {{cause: its num_pages * page_size is 1104, but the capacity is 1120}}
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 64 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
kvcache.program @kvcache.main(%x: memref<?x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>}) {
  kvcache.segment @planned {
    // As the capacities give it.
    kvcache.launch @a of "kvcache_paged_attention" grid [2, 4, 4] block [128, 1, 1] shared 0 args(%x : memref<?x4x64xbf16>)
      constants [0.1 : f32, 1.0 : f32, 0.0 : f32, 8 : i32, 2 : i32, 64 : i32, 0 : i32] origins ["", "", "", "max_tokens", "max_sequences", "max_pages_per_sequence", "no window"]
      structure [90 : i32, 1 : i32, 1 : i32, 0 : i32, 4 : i32, 2 : i32, 64 : i32, 16 : i32, 2048, 128 : i32, 64 : i32, 2048, 128 : i32, 64 : i32, 32 : i32, 3 : i32, 1 : i32, 4 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 256 : i32, 4 : i32, 0 : i32, 0 : i32] layer "layer0"
    // Splits.
    // expected-error @below {{'kvcache.launch' cannot be captured (live-geometry)}}
    // expected-note @below {{what to do: launch for the capacities, as 'kvcache-select-kernels' does}}
    kvcache.launch @a of "kvcache_paged_attention" grid [2, 4, 3] block [128, 1, 1] shared 0 args(%x : memref<?x4x64xbf16>)
      constants [0.1 : f32, 1.0 : f32, 0.0 : f32, 8 : i32, 2 : i32, 64 : i32, 0 : i32] origins ["", "", "", "max_tokens", "max_sequences", "max_pages_per_sequence", "no window"]
      structure [90 : i32, 1 : i32, 1 : i32, 0 : i32, 4 : i32, 2 : i32, 64 : i32, 16 : i32, 2048, 128 : i32, 64 : i32, 2048, 128 : i32, 64 : i32, 32 : i32, 3 : i32, 1 : i32, 4 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 256 : i32, 4 : i32, 0 : i32, 0 : i32] layer "layer0"
    // Rows.
    // expected-error @below {{'kvcache.launch' cannot be captured (live-geometry)}}
    // expected-note @below {{what to do: launch for the capacities}}
    kvcache.launch @a of "kvcache_paged_attention" grid [2, 1, 4] block [128, 1, 1] shared 0 args(%x : memref<?x4x64xbf16>)
      constants [0.1 : f32, 1.0 : f32, 0.0 : f32, 8 : i32, 2 : i32, 64 : i32, 0 : i32] origins ["", "", "", "max_tokens", "max_sequences", "max_pages_per_sequence", "no window"]
      structure [90 : i32, 1 : i32, 1 : i32, 0 : i32, 4 : i32, 2 : i32, 64 : i32, 16 : i32, 2048, 128 : i32, 64 : i32, 2048, 128 : i32, 64 : i32, 32 : i32, 3 : i32, 1 : i32, 4 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 256 : i32, 4 : i32, 0 : i32, 0 : i32] layer "layer0"
    // Sequences.
    // expected-error @below {{'kvcache.launch' cannot be captured (live-geometry)}}
    // expected-note @below {{what to do: launch for the capacities}}
    kvcache.launch @a of "kvcache_paged_attention" grid [2, 4, 4] block [128, 1, 1] shared 0 args(%x : memref<?x4x64xbf16>)
      constants [0.1 : f32, 1.0 : f32, 0.0 : f32, 8 : i32, 1 : i32, 64 : i32, 0 : i32] origins ["", "", "", "max_tokens", "max_sequences", "max_pages_per_sequence", "no window"]
      structure [90 : i32, 1 : i32, 1 : i32, 0 : i32, 4 : i32, 2 : i32, 64 : i32, 16 : i32, 2048, 128 : i32, 64 : i32, 2048, 128 : i32, 64 : i32, 32 : i32, 3 : i32, 1 : i32, 4 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 256 : i32, 4 : i32, 0 : i32, 0 : i32] layer "layer0"
    // Tokens of a write, and its slots.
    // expected-error @below {{'kvcache.launch' cannot be captured (live-geometry)}}
    // expected-note @below {{what to do: launch for the capacities}}
    kvcache.launch @w of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0 args(%x : memref<?x4x64xbf16>)
      constants [1.0 : f32, 1.0 : f32, 5 : i32, 1120] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048, 128 : i32, 64 : i32, 2048, 128 : i32, 64 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32] layer "layer0"
    // expected-error @below {{'kvcache.launch' cannot be captured (live-geometry)}}
    // expected-note @below {{what to do: launch for the capacities}}
    kvcache.launch @w of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0 args(%x : memref<?x4x64xbf16>)
      constants [1.0 : f32, 1.0 : f32, 8 : i32, 1104] origins ["k_scale", "v_scale", "max_tokens", "num_pages * page_size"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048, 128 : i32, 64 : i32, 2048, 128 : i32, 64 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32] layer "layer0"
  }
}

// -----

kvcache.scale_buffer @layer0.k : f32 = 1.0 from default
kvcache.scale_buffer @layer0.v : f32 = 1.0 from default
kvcache.cache_group @full page_size 16 {max_pages_per_sequence = 64 : i64, max_sequences = 2 : i64, max_tokens = 8 : i64, num_pages = 70 : i64}
kvcache.cache @layer0 of "l0" in @full : 2 x 64 x f8E4M3FN scales(@layer0.k, @layer0.v)
// A bucket has the grid and the constants of its batch: one sequence, 4 tokens.
kvcache.program @kvcache.main.b1(%x: memref<?x4x64xbf16> {kvcache.name = "x", kvcache.role = #kvcache<role activation>})
    attributes {batch_size = 1 : i64, bucket_of = @kvcache.main} {
  kvcache.segment @planned {
    kvcache.launch @a of "kvcache_paged_attention" grid [2, 2, 4] block [128, 1, 1] shared 0 args(%x : memref<?x4x64xbf16>)
      constants [0.1 : f32, 1.0 : f32, 0.0 : f32, 4 : i32, 1 : i32, 64 : i32, 0 : i32] origins ["", "", "", "max_tokens", "max_sequences", "max_pages_per_sequence", "no window"]
      structure [90 : i32, 1 : i32, 1 : i32, 0 : i32, 4 : i32, 2 : i32, 64 : i32, 16 : i32, 2048, 128 : i32, 64 : i32, 2048, 128 : i32, 64 : i32, 32 : i32, 3 : i32, 1 : i32, 4 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32, 256 : i32, 4 : i32, 0 : i32, 0 : i32] layer "layer0"
  }
}
