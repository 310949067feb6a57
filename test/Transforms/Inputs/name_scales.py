"""Copies a checkpoint's config.json, with scales of equal values by the names
of several producers.

usage: name_scales.py CHECKPOINT FOLDER
"""

import os
import shutil
import sys

import numpy as np
from safetensors.numpy import save_file

source, target = sys.argv[1:]
names = {
    "qkv_proj": ["qkv_proj.k_scale", "qkv_proj.v_scale"],
    "k_proj": ["k_proj.k_scale", "v_proj.v_scale"],
    "kv_scale": ["kv_scale"],
}
for folder, keys in names.items():
    os.makedirs(f"{target}/{folder}")
    shutil.copyfile(f"{source}/config.json", f"{target}/{folder}/config.json")
    scales = {f"model.layers.{i}.self_attn.{key}": np.float32(0.03) for i in range(2) for key in keys}
    save_file({key: np.asarray(value) for key, value in scales.items()}, f"{target}/{folder}/model.safetensors")
os.makedirs(f"{target}/only1")
save_file(
    {
        "model.layers.1.self_attn.k_proj.k_scale": np.asarray(np.float32(0.03)),
        "model.layers.1.self_attn.v_proj.v_scale": np.asarray(np.float32(0.05)),
    },
    f"{target}/only1/model.safetensors",
)
