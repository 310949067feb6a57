// RUN: kvcache-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(gpu.module(convert-arith-f8-to-nvvm))'

// Arithmetic that no device does is found, and all of it.
gpu.module @kernels {
  func.func @add(%x: f8E4M3FN) -> f8E4M3FN {
    // expected-error @+1 {{'arith.addf' computes in 8 bits or fewer, which no device does; widen with arith.extf, compute, and narrow with arith.truncf}}
    %0 = arith.addf %x, %x : f8E4M3FN
    // expected-error @+1 {{'math.exp' computes in 8 bits or fewer}}
    %1 = math.exp %0 : f8E4M3FN
    return %1 : f8E4M3FN
  }
}

// -----

gpu.module @kernels {
  func.func @other_format(%x: f32) -> f8E4M3FNUZ {
    // expected-error @+1 {{converts 'f32' to 'f8E4M3FNUZ'; conversions between f8E4M3FN or f8E5M2 and f16, bf16, f32 or f64 are known}}
    %0 = arith.truncf %x : f32 to f8E4M3FNUZ
    return %0 : f8E4M3FNUZ
  }
}

// -----

gpu.module @kernels {
  func.func @tensor(%x: tensor<4xf32>) -> tensor<4xf8E4M3FN> {
    // expected-error @+1 {{works on 'tensor<4xf32>'; expected a scalar or a vector: bufferize and lower to loops first}}
    %0 = arith.truncf %x : tensor<4xf32> to tensor<4xf8E4M3FN>
    return %0 : tensor<4xf8E4M3FN>
  }
}

// -----

gpu.module @kernels {
  func.func @scalable(%x: vector<[4]xf32>) -> vector<[4]xf8E4M3FN> {
    // expected-error @+1 {{works on 'vector<[4]xf32>'; expected a vector of fixed length}}
    %0 = arith.truncf %x : vector<[4]xf32> to vector<[4]xf8E4M3FN>
    return %0 : vector<[4]xf8E4M3FN>
  }
}

// -----

gpu.module @kernels {
  func.func @rounding(%x: f32) -> f8E4M3FN {
    // expected-error @+1 {{rounds downward; expected to_nearest_even}}
    %0 = arith.truncf %x downward : f32 to f8E4M3FN
    return %0 : f8E4M3FN
  }
}

// -----

// expected-error @+1 {{expected a chip such as sm_80 or sm_90, but found 'gfx90a'}}
gpu.module @kernels [#nvvm.target<chip = "gfx90a">] {
}
