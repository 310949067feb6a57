// One step of one layer that hands its cache on as a value.
func.func @main(%q: tensor<?x4x64xbf16>, %k: tensor<?x2x64xbf16>, %v: tensor<?x2x64xbf16>,
    %kp: tensor<64x16x2x64xf8E4M3FN>, %vp: tensor<64x16x2x64xf8E4M3FN>, %table: tensor<4x16xi32>, %lengths: tensor<4xi32>, %start: tensor<5xi32>, %slots: tensor<?xi64>)
    -> (tensor<?x4x64xbf16>, tensor<64x16x2x64xf8E4M3FN>, tensor<64x16x2x64xf8E4M3FN>) {
  %new:2 = "stablehlo.composite"(%k, %v, %kp, %vp, %table, %lengths, %start, %slots)
    <{name = "kvcache.write", composite_attributes = {layer_name = "model.layers.0.self_attn.attn", kv_cache_dtype = "fp8"}, decomposition = @write}>
    : (tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<64x16x2x64xf8E4M3FN>, tensor<64x16x2x64xf8E4M3FN>, tensor<4x16xi32>, tensor<4xi32>, tensor<5xi32>, tensor<?xi64>)
    -> (tensor<64x16x2x64xf8E4M3FN>, tensor<64x16x2x64xf8E4M3FN>)
  %o = "stablehlo.composite"(%q, %new#0, %new#1, %table, %lengths, %start, %slots)
    <{name = "kvcache.paged_attention", decomposition = @attention, composite_attributes = {layer_name = "model.layers.0.self_attn.attn", softmax_scale = 1.250000e-01 : f32,
      operand_names = ["query", "key_pages", "value_pages", "page_table", "lengths", "query_start", "slots"]}}>
    : (tensor<?x4x64xbf16>, tensor<64x16x2x64xf8E4M3FN>, tensor<64x16x2x64xf8E4M3FN>, tensor<4x16xi32>, tensor<4xi32>, tensor<5xi32>, tensor<?xi64>) -> tensor<?x4x64xbf16>
  return %o, %new#0, %new#1 : tensor<?x4x64xbf16>, tensor<64x16x2x64xf8E4M3FN>, tensor<64x16x2x64xf8E4M3FN>
}
func.func private @write(tensor<?x2x64xbf16>, tensor<?x2x64xbf16>, tensor<64x16x2x64xf8E4M3FN>, tensor<64x16x2x64xf8E4M3FN>, tensor<4x16xi32>, tensor<4xi32>, tensor<5xi32>, tensor<?xi64>) -> (tensor<64x16x2x64xf8E4M3FN>, tensor<64x16x2x64xf8E4M3FN>)
func.func private @attention(tensor<?x4x64xbf16>, tensor<64x16x2x64xf8E4M3FN>, tensor<64x16x2x64xf8E4M3FN>, tensor<4x16xi32>, tensor<4xi32>, tensor<5xi32>, tensor<?xi64>) -> tensor<?x4x64xbf16>
