// RUN: kvcache-opt %s --split-input-file --verify-diagnostics --convert-kvcache-to-nvvm

kvcache.program @kvcache.main(%s: memref<8xi64> {kvcache.name = "s", kvcache.role = #kvcache<role slots>}) {
  kvcache.segment @layer0 {
    // expected-error @below {{the device library has no function 'other'; expected one of those of 'kvcache-select-kernels', such as 'kvcache_write'}}
    kvcache.launch @a of "other" grid [1, 1, 1] block [128, 1, 1] shared 0 args() constants [] origins [] structure []
  }
}

// -----

kvcache.program @kvcache.main(%s: memref<8xi64> {kvcache.name = "s", kvcache.role = #kvcache<role slots>}) {
  kvcache.segment @layer0 {
    // expected-error @below {{'kvcache_write' has 19 structural constants, but the launch has 1}}
    kvcache.launch @a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0 args() constants [] origins [] structure [80 : i32]
  }
}

// -----

kvcache.program @kvcache.main(%s: memref<8xi64> {kvcache.name = "s", kvcache.role = #kvcache<role slots>}) {
  kvcache.segment @layer0 {
    // expected-error @below {{'kvcache_write' takes 5 buffers here, but the launch has 1}}
    kvcache.launch @a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0 args(%s : memref<8xi64>) constants [] origins []
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32]
  }
}

// -----

kvcache.program @kvcache.main(%s: memref<8xi64> {kvcache.name = "s", kvcache.role = #kvcache<role slots>}) {
  kvcache.segment @layer0 {
    // expected-error @below {{'kvcache_write' takes 4 constants, or 6 with scales for each KV head, but the launch has 1}}
    kvcache.launch @a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0
      args(%s, %s, %s, %s, %s : memref<8xi64>, memref<8xi64>, memref<8xi64>, memref<8xi64>, memref<8xi64>) constants [1.0 : f32] origins ["k_scale"]
      structure [90 : i32, 1 : i32, 0 : i32, 2 : i32, 64 : i32, 16 : i32, 2048 : i64, 128 : i32, 64 : i32, 2048 : i64, 128 : i32, 64 : i32, 1 : i32, 1 : i32, 0 : i32, 0 : i32, 0 : i32, 0 : i32]
  }
}

// -----

// expected-error @below {{the symbol @kvcache_kernels is taken; rename it}}
module {
  func.func private @kvcache_kernels()
  kvcache.program @kvcache.main(%s: memref<8xi64> {kvcache.name = "s", kvcache.role = #kvcache<role slots>}) {
    kvcache.segment @layer0 {
      kvcache.launch @a of "kvcache_write" grid [1, 1, 1] block [128, 1, 1] shared 0 args(%s : memref<8xi64>) constants [] origins [] structure []
    }
  }
}
