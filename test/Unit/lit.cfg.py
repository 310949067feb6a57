"""How lit runs the GoogleTest executables."""

import os

import lit.formats

config.name = "kvcache-unit"
config.test_format = lit.formats.GoogleTest(".", "Tests")
config.suffixes = []
config.test_source_root = config.test_exec_root = os.path.join(config.kvcache_build, "test", "Unit")
