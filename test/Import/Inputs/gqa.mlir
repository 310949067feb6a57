// One decode step of three sequences, as an ONNX importer has it.
func.func @main(%q: tensor<3x1x256xf16>, %k: tensor<3x1x128xf16>, %v: tensor<3x1x128xf16>, %pk: tensor<3x2x512x64xf8E4M3FN>, %pv: tensor<3x2x512x64xf8E4M3FN>, %seqlens: tensor<3xi32>, %total: tensor<i32>, %ks: tensor<1xf32>, %vs: tensor<1xf32>, %sinks: tensor<4xf16>) -> tensor<3x1x256xf16> {
  %none = "onnx.NoValue"() : () -> none
  %o:3 = "com.microsoft.GroupQueryAttention"(%q, %k, %v, %pk, %pv, %seqlens, %total, %none, %none, %none, %none, %sinks, %ks, %vs)
    {onnx_node_name = "/model/layers.7/attn/GroupQueryAttention", num_heads = 4 : si64, kv_num_heads = 2 : si64, scale = 1.250000e-01 : f32, local_window_size = 128 : si64, k_quant_type = "PER_TENSOR", v_quant_type = "PER_TENSOR"}
    : (tensor<3x1x256xf16>, tensor<3x1x128xf16>, tensor<3x1x128xf16>, tensor<3x2x512x64xf8E4M3FN>, tensor<3x2x512x64xf8E4M3FN>, tensor<3xi32>, tensor<i32>, none, none, none, none, tensor<4xf16>, tensor<1xf32>, tensor<1xf32>)
    -> (tensor<3x1x256xf16>, tensor<3x2x512x64xf8E4M3FN>, tensor<3x2x512x64xf8E4M3FN>)
  return %o#0 : tensor<3x1x256xf16>
}
