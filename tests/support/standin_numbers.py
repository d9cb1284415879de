"""Checks of the stand-in accelerator: results of operators, views, copies and random numbers."""

import copy

import torch

from support.standin_helpers import assert_raises, check


@check
def arithmetic_is_right():
    a, b = torch.randn(5, 4), torch.randn(4, 3)
    x, y = a.to("standin"), b.to("standin")
    assert x.device == torch.device("standin:0") and x.is_standin
    assert torch.equal((x @ y + 1).relu().cpu(), (a @ b + 1).relu())
    assert torch.equal(torch.cat([x, x * 2], 1).sum(0).cpu(), torch.cat([a, a * 2], 1).sum(0))
    assert (x > 0).sum().item() == (a > 0).sum().item()
    assert torch.arange(6, device="standin").tolist() == [0, 1, 2, 3, 4, 5]
    assert "device='standin:0'" in repr(x)


@check
def views_share_memory():
    base = torch.arange(24.0).reshape(4, 6)
    x = base.to("standin")
    x.t()[1:3, ::2] += 100
    x[2].view(2, 3)[1] = 7
    x.unfold(1, 2, 2)[0, 0].neg_()
    base.t()[1:3, ::2] += 100
    base[2].view(2, 3)[1] = 7
    base.unfold(1, 2, 2)[0, 0].neg_()
    assert torch.equal(x.cpu(), base)


@check
def copies_convert_stride_and_broadcast():
    a = torch.randn(6, 4)
    for source in (a, a.t(), a[::2, 1:], a.to(torch.bfloat16), a[:0], a[0, 0]):
        assert torch.equal(source.to("standin").cpu(), source)
    x = torch.zeros(4, 6, dtype=torch.float64, device="standin")
    x.t()[:, ::2].copy_(a[:, :2])
    x[0].copy_(torch.tensor([1, 2, 3, 4, 5, 6]))
    x[1].copy_(torch.tensor(9.0))
    expected = torch.zeros(4, 6, dtype=torch.float64)
    expected.t()[:, ::2].copy_(a[:, :2])
    expected[0].copy_(torch.tensor([1, 2, 3, 4, 5, 6]))
    expected[1].copy_(torch.tensor(9.0))
    assert torch.equal(x.cpu(), expected)
    onto_itself = torch.zeros(1, device="standin").expand(3)
    assert_raises(RuntimeError, "single memory location", lambda: onto_itself.copy_(torch.ones(3)))


@check
def complex_numbers():
    c = torch.randn(5, dtype=torch.complex64)
    x = c.to("standin")
    assert torch.equal(x.conj().cpu(), c.conj())
    assert torch.equal(torch.view_as_real(x).cpu(), torch.view_as_real(c))
    assert torch.equal(x.conj().imag.cpu(), c.conj().imag)
    x.copy_(c.conj())
    assert torch.equal(x.cpu(), c.conj())


@check
def storages_grow_and_are_shared():
    x = torch.arange(10.0).to("standin")
    x.resize_(20)
    assert torch.equal(x[:10].cpu(), torch.arange(10.0))
    y = torch.empty(0, device="standin").set_(x.untyped_storage(), 2, (3,), (2,))
    y += 1
    assert x[:8].tolist() == [0, 1, 3, 3, 5, 5, 7, 7]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    assert torch.equal(copy.deepcopy(y[:0]).cpu(), torch.empty(0))


@check
def random_numbers_repeat():
    torch.manual_seed(3)
    first = torch.randn(4, device="standin:1").cpu()
    state = torch.standin.get_rng_state()
    second = torch.rand(4, device="standin").cpu()
    torch.manual_seed(3)
    assert torch.equal(torch.randn(4, device="standin:2").cpu(), first)
    torch.standin.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="standin").cpu(), second)
