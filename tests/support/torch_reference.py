"""Expected results of reductions, and difficult input data; no communication here.

The rules: 16- and 8-bit floats are combined in float32 in rank order and rounded once by torch's
.to(dtype); float32 and float64 in rank order in their own type; integers wrap; MIN and MAX
propagate NaN and on a tie keep the earlier rank's value; bool has only and, or and xor.
"""

import torch
import torch.distributed as dist

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [*FLOATS, *SIGNED, *UNSIGNED, torch.bool, *COMPLEX]

KINDS = {
    **dict.fromkeys(FLOATS, "float"),
    **dict.fromkeys([*SIGNED, *UNSIGNED], "integer"),
    torch.bool: "bool",
    **dict.fromkeys(COMPLEX, "complex"),
}
# The kinds of numbers for which a reduction is defined.
REDUCTIONS = {
    "SUM": {"float", "integer", "bool", "complex"},
    "AVG": {"float", "complex"},
    "PRODUCT": {"float", "integer", "bool", "complex"},
    "MIN": {"float", "integer", "bool"},
    "MAX": {"float", "integer", "bool"},
    "BAND": {"integer", "bool"},
    "BOR": {"integer", "bool"},
    "BXOR": {"integer", "bool"},
    "PREMUL_SUM": {"float", "integer", "complex"},
}


def rounds_as_ccl(dtype: torch.dtype) -> bool:
    """Before 2.13 torch's own conversion of large numbers to float8_e4m3fn gives NaN, not +-448."""
    return dtype != torch.float8_e4m3fn or not torch.tensor(1e6).to(dtype).float().isnan()


def reductions_of(dtype: torch.dtype) -> list[str]:
    """Returns the reductions for which this module can compute what is expected."""
    if not rounds_as_ccl(dtype):
        return []
    return [name for name, kinds in REDUCTIONS.items() if KINDS[dtype] in kinds]


def reduce_op(reduction: str, factor: float):
    """Returns torch's ReduceOp; only PREMUL_SUM has a factor, that of this rank."""
    if reduction == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(factor)
    return getattr(dist.ReduceOp, reduction)


# ---- bits


def components(values: torch.Tensor) -> torch.Tensor:
    """Returns the elements in one dimension, complex numbers as pairs of real ones."""
    row = torch.empty(values.shape, dtype=values.dtype).copy_(values).reshape(-1)
    return torch.view_as_real(row).reshape(-1) if row.is_complex() else row


def bytes_of(values: torch.Tensor) -> torch.Tensor:
    return components(values).view(torch.uint8)


def is_nan(row: torch.Tensor) -> torch.Tensor:
    return row.to(torch.float32).isnan() if row.dtype.is_floating_point else row != row


def same_numbers(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Compares bits, except that arithmetic may give any NaN where a NaN is expected."""
    if torch.equal(bytes_of(found), bytes_of(expected)):
        return True
    found, expected = components(found), components(expected)
    if not expected.dtype.is_floating_point:
        return False
    nan = is_nan(expected)
    bits = [x.view(torch.uint8).reshape(-1, x.itemsize) for x in (found, expected)]
    return torch.equal(nan, is_nan(found)) and torch.equal(bits[0][~nan], bits[1][~nan])


# ---- reductions: inputs in rank order, all contiguous


def smaller(a, b):
    return torch.where((b < a) | (b != b), b, a)


def larger(a, b):
    return torch.where((b > a) | (b != b), b, a)


COMBINE = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": smaller,
    "MAX": larger,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def combined(values: list[torch.Tensor], combine) -> torch.Tensor:
    total = values[0]
    for value in values[1:]:
        total = combine(total, value)
    return total


def reduced_floats(inputs, reduction, factors):
    dtype = inputs[0].dtype
    wide = dtype if dtype.itemsize >= 4 else torch.float32
    values = [x.to(wide) for x in inputs]
    if reduction == "PREMUL_SUM":
        values = [x * torch.full_like(x, f) for x, f in zip(values, factors, strict=True)]
    total = combined(values, COMBINE[reduction])
    if reduction == "AVG":
        total = total / torch.full_like(total, len(inputs))
    return total.to(dtype)


def signed_of(dtype: torch.dtype) -> torch.dtype:
    return next(t for t in SIGNED if t.itemsize == dtype.itemsize)


def reduced_integers(inputs, reduction, factors):
    """Uses signed types, as torch lacks arithmetic for most unsigned ones; only order differs."""
    dtype, signed = inputs[0].dtype, signed_of(inputs[0].dtype)
    flip = torch.iinfo(signed).min if dtype in UNSIGNED and reduction in ("MIN", "MAX") else 0
    values = [x.view(signed) ^ flip for x in inputs]
    if reduction == "PREMUL_SUM":
        values = [x * int(f) for x, f in zip(values, factors, strict=True)]
    return (combined(values, COMBINE[reduction]) ^ flip).view(dtype)


TRUTHS = {
    **dict.fromkeys(("SUM", "MAX", "BOR"), torch.logical_or),
    **dict.fromkeys(("PRODUCT", "MIN", "BAND"), torch.logical_and),
    "BXOR": torch.logical_xor,
}


def reduced_truths(inputs, reduction, factors):
    return combined(inputs, TRUTHS[reduction])


def complex_product(a, b):
    """Uses the plain formula on pairs of real numbers, each step rounded."""
    (ar, ai), (br, bi) = a.unbind(-1), b.unbind(-1)
    return torch.stack([ar * br - ai * bi, ar * bi + ai * br], dim=-1)


def reduced_complex(inputs, reduction, factors):
    pairs = [torch.view_as_real(x) for x in inputs]
    if reduction == "PRODUCT":
        return torch.view_as_complex(combined(pairs, complex_product))
    return torch.view_as_complex(reduced_floats(pairs, reduction, factors))


REDUCED = {
    "float": reduced_floats,
    "integer": reduced_integers,
    "bool": reduced_truths,
    "complex": reduced_complex,
}


def reduced(inputs: list[torch.Tensor], reduction: str, factors: list[float]) -> torch.Tensor:
    return REDUCED[KINDS[inputs[0].dtype]](inputs, reduction, factors)


# ---- data


def any_bits(random, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns random bits: NaNs of all kinds, denormals, infinities, the largest integers."""
    size = (numel * dtype.itemsize,)
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=random).view(dtype)


def ordinary(random, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns numbers whose sums must be rounded."""
    return torch.randn(numel, generator=random).to(dtype)


def special(random, numel: int, dtype: torch.dtype) -> torch.Tensor:
    chosen = torch.randint(0, 16, (numel,), generator=random)
    return special_values(dtype)[chosen]


_special_values: dict[torch.dtype, torch.Tensor] = {}


def special_values(dtype: torch.dtype) -> torch.Tensor:
    if dtype not in _special_values:
        limits = torch.finfo(dtype)
        bits = torch.tensor([1, 3], dtype=signed_of(dtype)).view(dtype)  # denormals
        numbers = [0.0, -0.0, 1.0, -1.0, 1 + limits.eps, limits.max, limits.min, limits.max / 2]
        numbers += [limits.tiny, -limits.tiny, float("inf"), -float("inf"), float("nan"), 3.0]
        wide = torch.tensor(numbers, dtype=torch.float64).to(dtype)
        row = torch.cat([wide.view(torch.uint8), bits.view(torch.uint8)])
        _special_values[dtype] = row.view(dtype)
    return _special_values[dtype]


FLAVOURS = {"any bits": any_bits, "ordinary": ordinary, "special": special}


def values_of(random, shape: tuple, dtype: torch.dtype, flavour: str) -> torch.Tensor:
    """The state of the generator `random` determines the values."""
    numel = torch.Size(shape).numel()
    kind = KINDS[dtype]
    if kind == "bool":
        return torch.randint(0, 2, shape, dtype=torch.uint8, generator=random).view(dtype)
    if kind == "complex":
        real = torch.float32 if dtype == torch.complex64 else torch.float64
        return values_of(random, (2 * numel,), real, flavour).view(dtype).reshape(shape)
    make = any_bits if kind == "integer" else FLAVOURS[flavour]
    return make(random, numel, dtype).reshape(shape)
