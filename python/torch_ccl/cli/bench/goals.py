"""Goals for the speed of `ccl` relative to Gloo, through torch.distributed on two cores.

A goal is reached if the lower quartile of the ratios reaches it.
"""

SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)

#: (operation, dtype, ranks) -> Gloo's time divided by ccl's, for each of SIZES
GOALS: dict[tuple[str, str, int], tuple[float, ...]] = {
    ("all_reduce", "float32", 2): (30, 40, 25, 6.5, 5.5, 5),
    ("all_reduce", "bfloat16", 2): (40, 40, 25, 9, 6, 6),
    ("all_gather", "float32", 2): (30, 30, 20, 9, 10, 6),
    ("reduce_scatter", "float32", 2): (30, 30, 25, 12, 9, 5),
    ("broadcast", "float32", 2): (25, 25, 15, 6, 4, 2.5),
    ("all_to_all", "float32", 2): (25, 25, 15, 6, 5.5, 3),
    ("ping_pong", "float32", 2): (10, 10, 8, 4, 3.5, 2.5),
    ("all_reduce", "float32", 4): (40, 80, 60, 8, 4.5, 4),
}
BARRIER_GOAL = 25.0  # 2 ranks


def goal(op: str, size_bytes: int, dtype: str, ranks: int) -> float | None:
    if op == "barrier":
        return BARRIER_GOAL if ranks == 2 else None
    row = GOALS.get((op, dtype, ranks))
    return row[SIZES.index(size_bytes)] if row and size_bytes in SIZES else None
