import os

# On some CPUs torch's bfloat16 matrix product is wrong or missing beyond this instruction set.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Ranks share the cores; without this every rank starts as many threads as there are cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
