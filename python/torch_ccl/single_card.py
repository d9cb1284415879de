"""Data-parallel training on all cores, or all devices, of one machine.

    def train(arguments):
        tile = single_card_dist(model, train_dataset)
        ...  # with tile.rank, tile.model and tile.train_sampler

    if __name__ == "__main__":
        sys.exit(single_card_dist.multi_process_spawn(train, (arguments,)))

The names `single_card` and `tile` come from Intel's intel_extension_for_pytorch, where a card is a
GPU with several tiles. What a tile is here: torch_ccl/tiles.py.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from torch_ccl.agent.ports import open_port
from torch_ccl.environment import init
from torch_ccl.spawn import SpawnedRanks
from torch_ccl.tiles import tiles_of_this_machine


class single_card_dist:
    """One rank of the training: its local rank, the model on its tile, its share of the data.

    Creates the default group if there is none. The ranks may have been started by
    multi_process_spawn() or by another launcher. Without a launcher: a group of one.

    rank            rank on this host, which is also the index of its device
    model           wrapped in DistributedDataParallel
    train_sampler   a DistributedSampler; call its set_epoch() before each epoch
    """

    def __init__(self, model: torch.nn.Module, train_dataset: Dataset[Any]):
        self.rank = init().local_rank
        self.model = _wrap(model, self.rank)
        self.train_sampler: DistributedSampler[Any] = DistributedSampler(train_dataset)

    @staticmethod
    def multi_process_spawn(
        f: Callable[..., Any], args: Iterable[Any] = (), *, tiles: int | None = None
    ) -> int:
        """Call f(*args) in one new process per tile, and return when all have ended.

        The processes have RANK, WORLD_SIZE and the other variables of a launcher. Returns 0 if all
        succeed. If one fails, ends the others and returns the exit code of the rank whose failure
        caused the others' (1 for an exception, 128 + number for a signal). `f` and `args` must be
        picklable. `tiles` defaults to all tiles of the machine.
        """
        if not isinstance(args, tuple | list):
            raise TypeError(f"args must be a tuple such as (args,), not {type(args).__name__}")
        with open_port(listening=False) as port, SpawnedRanks(f, tuple(args)) as ranks:
            ranks.start(tiles_of_this_machine(tiles), port.getsockname()[1])
            return ranks.wait()


def _wrap(model: torch.nn.Module, local_rank: int) -> DistributedDataParallel:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        return DistributedDataParallel(model)
    kind = accelerator.type
    world: Any = dist.group.WORLD
    if kind not in {device.type for device in world._device_types}:
        raise RuntimeError(
            f"no backend of the default group serves {kind} tensors: set CCL_DEVICES={kind} before "
            "`import torch`, so that ccl serves them"
        )
    # A launcher may have made only one device visible to each rank.
    index = local_rank % torch.accelerator.device_count()
    torch.accelerator.set_device_index(index)
    device = torch.device(kind, index)
    return DistributedDataParallel(model.to(device), device_ids=[index])
