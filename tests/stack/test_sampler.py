"""DistributedSampler: the samples of all ranks together, also with data loader workers."""

import torch
import torch.distributed as dist
from support.debug_levels import assert_equal
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LENGTH = 37  # neither 2 nor 4 divide it


class Squares(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return index, index * index


def delivered(loader: DataLoader) -> list[int]:
    """The indices in order; each sample must match its index."""
    indices = []
    for index, square in loader:
        assert_equal(square, index * index, "squares")
        indices += index.tolist()
    return indices


def everyones(indices: list[int], size: int) -> list[list[int]]:
    """All ranks' indices, over the group: everyone has as many."""
    mine = torch.tensor(indices)
    gathered = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine)
    return [x.tolist() for x in gathered]


def expected_order(epoch: int, shuffle: bool) -> list[int]:
    if not shuffle:
        return list(range(LENGTH))
    generator = torch.Generator().manual_seed(11 + epoch)
    return torch.randperm(LENGTH, generator=generator).tolist()


def check_sampler(rank: int, size: int) -> None:
    for shuffle in (False, True):
        for drop_last in (False, True):
            sampler = DistributedSampler(Squares(), shuffle=shuffle, seed=11, drop_last=drop_last)
            # A worker is forked while the group exists, and must not affect it.
            loader = DataLoader(
                Squares(),
                batch_size=4,
                sampler=sampler,
                num_workers=1,
                multiprocessing_context="fork",
            )
            for epoch in range(2):
                sampler.set_epoch(epoch)
                seen = everyones(delivered(loader), size)
                order = expected_order(epoch, shuffle)
                each = LENGTH // size if drop_last else -(-LENGTH // size)
                padded = (order + order)[: each * size]
                what = f"shuffle={shuffle} drop_last={drop_last} epoch={epoch}"
                assert_equal(seen, [padded[r::size] for r in range(size)], what)
                if not drop_last:
                    assert set().union(*seen) == set(range(LENGTH)), what


def test_sampler(on_ranks):
    on_ranks(check_sampler)
