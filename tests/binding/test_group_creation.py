"""What a rank finds when it creates a group: keys that vanish from the store, and a secret file."""

import functools
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ccl
from support.ranks import run_ranks
from torch.distributed.distributed_c10d import _get_default_store


class VanishingStore(dist.Store):
    """Returns an empty value for each key once: TCPStore does that if another rank removes the key
    after this one has seen it."""

    def __init__(self, store: dist.Store):
        super().__init__()
        self._store = store
        self.vanished: set[str] = set()

    def get(self, key: str) -> bytes:
        if key not in self.vanished:
            self.vanished.add(key)
            return b""
        return self._store.get(key)


for _name in ("set", "add", "check", "wait", "compare_set", "delete_key", "num_keys"):

    def _forward(self, *args, name=_name):
        return getattr(self._store, name)(*args)

    setattr(VanishingStore, _name, _forward)


def check_vanishing_keys(rank: int, size: int) -> None:
    store = VanishingStore(dist.PrefixStore("vanishing", _get_default_store()))
    group = torch_ccl.ProcessGroupCCL(store, rank, size, timeout=timedelta(seconds=20))
    x = torch.ones(3)
    group.allreduce(x)
    assert x.eq(size).all()
    assert rank == 0 or "secret" in store.vanished


def test_vanishing_keys():
    run_ranks(3, check_vanishing_keys, bound_s=40)


def prepare(directory: Path, mode: int, rank: int) -> None:
    secret = directory / "secret"
    if rank == 0:
        secret.write_text("of this job")
        secret.chmod(mode)
        (directory / "ready").touch()
    while not (directory / "ready").exists():
        time.sleep(0.001)
    os.environ["CCL_SECRET_FILE"] = str(secret)
    os.environ.pop("RANK", None)
    os.dup2(os.open(directory / f"stderr-{rank}", os.O_CREAT | os.O_WRONLY, 0o600), 2)


def check_sum(rank: int, size: int) -> None:
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.eq(size).all()


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_secret_file_that_others_may_read(mode, tmp_path):
    """Rank 0 warns, once."""
    run_ranks(2, check_sum, prepare=functools.partial(prepare, tmp_path, mode))
    first, second = (
        [line for line in (tmp_path / f"stderr-{rank}").read_text().splitlines() if "tccl" in line]
        for rank in range(2)
    )
    assert second == []
    if mode == 0o600:
        assert first == []
    else:
        (line,) = first
        assert "CCL_SECRET_FILE=" in line
        assert "other users may access it (mode 644): chmod 600" in line
