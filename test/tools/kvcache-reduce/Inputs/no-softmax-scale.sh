#!/bin/sh
# Interesting (exit code 1): the reference lowering refuses an attention that has
# no softmax scale.
kvcache-opt "$1" --allow-unregistered-dialect --kvcache-caches-to-arguments --convert-kvcache-to-reference 2>&1 |
  grep -q "has no 'softmax_scale'" && exit 1
exit 0
