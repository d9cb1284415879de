"""Groups over several hosts: results, failures and progress, through torch."""

import re
import time

import pytest
from support.parameters import slow
from support.script_ranks import run_ranks, started_ranks
from support.virtual_hosts import virtual_hosts

LAYOUTS = (
    [2, 2],
    slow([1, 1, 1, 1]),
    slow([3, 1]),
)


@pytest.fixture(scope="module")
def hosts():
    with virtual_hosts(4) as hosts:
        yield hosts


# ---- results

COLLECTIVES = """
def data(of, count, dtype=torch.float32):
    return ((torch.arange(count) * (of + 2) + of) % 17).to(dtype)

def same(what, result, expected):
    assert torch.equal(result, expected), f"{what}: {result} is not {expected}"

def check(members, group, count, dtype):
    index, n = members.index(rank), len(members)
    inputs = [data(of, count, dtype) for of in members]
    mine = inputs[index]

    for op, expected in (
        (dist.ReduceOp.SUM, torch.stack(inputs).sum(0).to(dtype)),
        (dist.ReduceOp.MAX, torch.stack(inputs).amax(0)),
    ):
        x = mine.clone()
        dist.all_reduce(x, op, group=group)
        same(f"all_reduce {op}", x, expected)

    sums = torch.stack(inputs).sum(0).to(dtype)
    for root in members:
        x = mine.clone()
        dist.broadcast(x, root, group=group)
        same(f"broadcast from {root}", x, data(root, count, dtype))
        x = mine.clone()
        dist.reduce(x, root, group=group)
        if rank == root:
            same(f"reduce to {root}", x, sums)
        parts = [torch.empty_like(mine) for _ in members] if rank == root else None
        dist.gather(mine, parts, root, group=group)
        if rank == root:
            same(f"gather to {root}", torch.stack(parts), torch.stack(inputs))
        x = torch.empty_like(mine)
        dist.scatter(x, inputs if rank == root else None, root, group=group)
        same(f"scatter from {root}", x, mine)

    x = torch.empty(n * count, dtype=dtype)
    dist.all_gather_into_tensor(x, mine, group=group)
    same("all_gather", x, torch.cat(inputs))

    whole = [data(of, n * count, dtype) for of in members]
    x = torch.empty(count, dtype=dtype)
    dist.reduce_scatter_tensor(x, whole[index].clone(), group=group)
    same("reduce_scatter", x, torch.stack(whole).sum(0).to(dtype).chunk(n)[index])

    x = torch.empty(n * count, dtype=dtype)
    dist.all_to_all_single(x, whole[index], group=group)
    same("all_to_all", x, torch.cat([other.chunk(n)[index] for other in whole]))

    ahead, behind = members[(index + 1) % n], members[(index - 1) % n]
    x = torch.empty_like(mine)
    sent = dist.isend(mine, ahead, group=group)
    dist.recv(x, behind, group=group)
    sent.wait()
    same("ring", x, data(behind, count, dtype))

    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    assert objects == [{"rank": of} for of in members], objects
    dist.barrier(group=group)

everyone = list(range(size))
choices = [everyone[::2], everyone[1::2], [0, size - 1]]
sub_groups = [(members, dist.new_group(members)) for members in choices]
for count in (1, 5, 1000, 300007):
    for dtype in (torch.float32, torch.int64):
        check(everyone, None, count, dtype)
for members, group in sub_groups:
    if rank in members:
        check(members, group, 1000, torch.float32)
dist.barrier()
dist.destroy_process_group()
report(done=True)
"""


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_collectives(hosts, layout):
    reports = run_ranks(hosts[: len(layout)], layout, COLLECTIVES)
    assert reports == [[{"done": True}]] * 4


# ---- failures

LOOP = """
sums = 0
try:
    while True:
        x = torch.ones(1000)
        dist.all_reduce(x)
        assert x[0] == size
        sums += 1
        if sums == 5:
            report(ready=True)
            if rank == int(os.environ.get("SLEEPER", -1)):
                time.sleep(1000)
except RuntimeError as error:
    report(at=time.monotonic(), message=str(error))
"""


def test_a_killed_rank(hosts):
    """It is killed before it joins a collective; every survivor on every host fails."""
    with started_ranks(hosts[:2], [2, 2], LOOP, SLEEPER="3") as ranks:
        for rank in ranks:
            rank.wait_for_report()
        victim = ranks[3]
        time.sleep(0.5)  # so that the others wait for it
        killed = time.monotonic()
        victim.process.kill()
        heard = [rank.wait_for_report(2, bound_s=20) for rank in ranks[:3]]
    for what in heard:
        assert what["at"] - killed < 10, what  # 1 s on an idle machine
        assert f"rank 3 (host h2, pid {victim.process.pid})" in what["message"], what
    operations = {re.search(r"allreduce #\d+", what["message"])[0] for what in heard}
    assert len(operations) == 1, operations


LOOP_AND_AFTER = (
    LOOP
    + """
while not os.path.exists(os.environ["JOINED"]):
    time.sleep(0.01)
try:
    dist.all_reduce(torch.ones(1))
    report(again="worked")
except RuntimeError as error:
    report(again=str(error))
group = dist.new_group()
x = torch.ones(1)
dist.all_reduce(x, group=group)
report(sum=x.item())
"""
)


@pytest.mark.slow
def test_link_down(tmp_path):
    """Both sides fail. After the link is up again the group stays failed; a new group works."""
    environment = {"CCL_LIVENESS_TIMEOUT": "2", "JOINED": str(tmp_path / "joined")}
    with (
        virtual_hosts(2) as hosts,
        started_ranks(hosts, [2, 2], LOOP_AND_AFTER, **environment) as ranks,
    ):
        for rank in ranks:
            rank.wait_for_report()
        down_at = time.monotonic()
        hosts[1].link_down()
        for rank in ranks:
            what = rank.wait_for_report(2, bound_s=20)
            assert what["at"] - down_at < 10, what  # the heartbeat timeout, and a margin
            other = hosts[0] if rank.host is hosts[1] else hosts[1]
            assert f"(host {other.name}, pid " in what["message"], what
        hosts[1].link_up()
        (tmp_path / "joined").touch()
        for rank in ranks:
            assert rank.wait_for_report(3)["again"] != "worked"
            assert rank.wait_for_report(4)["sum"] == 4


# ---- progress

SEND_AND_COMPUTE = """
count = 1 << 18
for turn in range(3):
    dist.barrier()
    x = torch.full((count,), float(turn)) if rank == 0 else torch.empty(count)
    if rank == 0:
        begun = time.monotonic()
        sent = dist.isend(x, 1)
        while time.monotonic() < begun + 1:
            torch.ones(64, 64) @ torch.ones(64, 64)
        sent.wait()
        report(begun=begun)
    else:
        dist.recv(x, 0)
        ended = time.monotonic()
        assert (x == turn).all()
        report(ended=ended)
dist.destroy_process_group()
"""


@pytest.mark.serial  # measures time
def test_a_message_arrives_while_its_sender_computes(hosts):
    sender, receiver = run_ranks(hosts[:2], [1, 1], SEND_AND_COMPUTE)
    times = [b["ended"] - a["begun"] for a, b in zip(sender, receiver, strict=True)]
    assert min(times) < 0.2, times  # milliseconds on idle cores


# ---- memory

MANY_OPERATIONS = """
from pathlib import Path

def resident_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

x, small = torch.zeros(25), torch.zeros(1)
def work(times):
    for _ in range(times):
        dist.all_reduce(x)
        if rank == 0:
            dist.send(small, 1)
        else:
            dist.recv(small, 0)
    return resident_kib()

before = work(3000)
report(grown=work(3000) - before)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_memory_does_not_grow(hosts):
    """After the warm-up libfabric's rings are fully in use."""
    for reports in run_ranks(hosts[:2], [1, 1], MANY_OPERATIONS):
        assert reports[0]["grown"] <= 128, reports
