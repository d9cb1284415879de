"""Tensors of every layout, in memory whose other bytes are known.

Placed(values, "transposed") has a .tensor with these values. It later checks that the elements have
the expected values and that the bytes around and between them are unchanged. The memory is on the
device that place_on() set, by default the CPU.
"""

import torch

from support.torch_reference import bytes_of, components, same_numbers

TAIL = 4  # unused elements of the storage after the last one that the view uses

_device = torch.device("cpu")


def place_on(device: str) -> None:
    global _device
    _device = torch.device(device)


def plain_strides(shape) -> list[int]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= max(1, extent)
    return strides


# ---- layouts: a shape's strides, in elements


def transposed(shape):
    return plain_strides(shape[::-1])[::-1]


def sliced(shape):
    """Takes every second element of the last dimension; there is a gap behind each row."""
    if not shape:
        return []
    return [*plain_strides([*shape[:-1], 2 * shape[-1] + 1])[:-1], 2]


def channels_last(shape):
    n, c, h, w = plain_strides([shape[0], *shape[2:], shape[1]])
    return [n, w, c, h]


def expanded(shape):
    """All rows are one row; such a tensor can only be read."""
    return [0, *plain_strides(shape)[1:]]


STRIDES = {
    "contiguous": plain_strides,
    "offset": plain_strides,
    "transposed": transposed,
    "sliced": sliced,
    "channels_last": channels_last,
    "expanded": expanded,
    "conjugate": plain_strides,
    "negative": plain_strides,
}
# How torch makes a view of memory that holds the conjugate or the negative.
LAZY = {"conjugate": torch.conj, "negative": torch._neg_view}


def layouts_of(shape, dtype: torch.dtype, *, written: bool, lazy: bool) -> list[str]:
    """The layouts that a tensor of this shape can have. Only the backend accepts lazy ones."""
    layouts = ["contiguous", "offset"]
    if len(shape) > 0:
        layouts.append("sliced")
    if len(shape) > 1:
        layouts.append("transposed")
    if len(shape) == 4:
        layouts.append("channels_last")
    if len(shape) > 0 and not written:
        layouts.append("expanded")
    if lazy and dtype.is_complex:
        layouts.append("conjugate")
    if lazy and dtype in (torch.float32, torch.float64):
        layouts.append("negative")
    return layouts


def showable(values: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns values that the layout can show: an expanded tensor repeats its first row."""
    if layout != "expanded" or values.shape[0] == 0:
        return values
    return values[:1].expand(values.shape).contiguous()


class Placed:
    def __init__(self, values: torch.Tensor, layout: str):
        self._shape, self._dtype = values.shape, values.dtype
        self._strides = STRIDES[layout](list(values.shape))
        self._offset = 3 if layout == "offset" else 0
        self._lazy = LAZY.get(layout, lambda tensor: tensor)
        self._memory = self._room()
        plain = self._view(self._memory)
        rows = slice(0, 1) if layout == "expanded" else ...
        plain[rows].copy_(self._lazy(values).resolve_conj().resolve_neg()[rows])
        self._before = self._memory.clone()
        self._placed = self._memory.to(_device)  # on the CPU it is the same memory
        self.tensor = self._lazy(self._view(self._placed))

    def _room(self) -> torch.Tensor:
        spans = zip(self._shape, self._strides, strict=True)
        last = self._offset + sum(max(0, extent - 1) * stride for extent, stride in spans)
        # bool: bytes other than 0 and 1 are invalid
        pattern = 1 if self._dtype == torch.bool else 0x5A
        return torch.full(((last + 1 + TAIL) * self._dtype.itemsize,), pattern, dtype=torch.uint8)

    def _view(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.view(self._dtype).as_strided(self._shape, self._strides, self._offset)

    def _shown(self) -> torch.Tensor:
        """The tensor as it is now, on the CPU."""
        self._memory.copy_(self._placed)
        return self._lazy(self._view(self._memory))

    def found(self) -> torch.Tensor:
        return bytes_of(self._shown())

    def check_unchanged(self) -> None:
        self._shown()
        assert torch.equal(self._memory, self._before), "memory that is only read was written"

    def check(self, expected: torch.Tensor, *, exactly: bool) -> None:
        """`exactly` asks for the expected NaN, too, as for numbers that are only moved."""
        shown = self._shown()
        if exactly:
            right = torch.equal(bytes_of(shown), bytes_of(expected))
        else:
            right = same_numbers(shown, expected)
        assert right, difference(shown, expected)
        self._view(self._before).copy_(self._view(self._memory))
        assert torch.equal(self._memory, self._before), "bytes outside of the view were written"


def room(shape, dtype: torch.dtype, layout: str) -> Placed:
    """Returns an output tensor whose elements have none of the expected values."""
    size = (torch.Size(shape).numel() * dtype.itemsize,)
    pattern = 1 if dtype == torch.bool else 0x5A
    return Placed(torch.full(size, pattern, dtype=torch.uint8).view(dtype).reshape(shape), layout)


def difference(found: torch.Tensor, expected: torch.Tensor) -> str:
    """Describes the first element with other bits; where any NaN will do, that may be a NaN."""
    rows = [components(x) for x in (found, expected)]
    bits = [x.view(torch.uint8).reshape(-1, x.itemsize) for x in rows]
    wrong = (bits[0] != bits[1]).any(dim=1).nonzero().flatten().tolist()
    values = [
        f"{x[wrong[0]].item()} {b[wrong[0]].tolist()}" for x, b in zip(rows, bits, strict=True)
    ]
    return (
        f"{len(wrong)} of {len(bits[0])} differ, the first at {wrong[0]}: "
        f"found {values[0]}, expected {values[1]}"
    )
