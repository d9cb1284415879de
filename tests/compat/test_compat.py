"""Scripts that make the calls of the documents' scripts, started in the same ways."""

from pathlib import Path

import profile_table
import pytest
from documents import (
    Edit,
    Script,
    blocks,
    commands,
    edited,
    find,
    fixed_port,
    only_one,
    says_growth,
    says_nothing,
    says_same,
)
from launching import WAYS, free_port, run_script
from over_hosts import run_over_hosts

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize("way", WAYS)
def test_place(way):
    port = free_port()
    for rank, out, err in run_script(way, SCRIPTS / "place.py", str(port), port=port):
        place, gradient = out.splitlines()
        assert place == f"{rank} of 2, locally {rank}"
        assert gradient == str([[0.5] * 3] * 2)  # the mean of the inputs 0 and 1
        assert not err, err


def test_training():
    (losses, weights), (other_losses, other_weights) = (
        rank.out.splitlines() for rank in run_script("torchrun", SCRIPTS / "train.py")
    )
    assert weights == other_weights and weights.startswith("weights [[")
    assert losses != other_losses, "the ranks had the same data"


def test_profile():
    for _, out, err in run_script("by hand", SCRIPTS / "profile_sums.py"):
        assert profile_table.rows(out, "pg::") == [
            ("pg::allreduce", 3, "[[2]]"),
            ("pg::allreduce", 7, "[[3, 5]]"),
            ("pg::wait::allreduce::sz:15", 7, "[]"),
            ("pg::wait::allreduce::sz:2", 3, "[]"),
        ], out
        heads = {"Name", "CPU total %", "CPU total", "CPU time avg", "Input Shapes"}
        assert heads <= set(profile_table.columns(out)) and "Self CPU time total: " in out
        assert not profile_table.without_log(err), err


WHERE = {"where.py": (SCRIPTS / "where.py").read_text()}


def test_hydra_with_a_file_of_addresses():
    line = "mpiexec.hydra -f hostfile -np 4 -ppn 2 -l -genv COLOUR=[a=b,0x1] python -u where.py"
    hosts, out, _ = run_over_hosts(2, f". ~/.local/env/setvars.sh\n{line}", WHERE)
    assert hosts == ["h1", "h2"]
    assert sorted(out) == [
        f"[{rank}] h{1 + rank // 2} {rank} 4 {rank % 2} [a=b,0x1]" for rank in range(4)
    ]


def test_hydra_with_names_of_hosts():
    line = "COLOUR=red mpiexec -n 2 -ppn 1 -hosts left,right python where.py"
    hosts, out, _ = run_over_hosts(2, line, WHERE)
    assert hosts == ["left", "right"] and sorted(out) == ["left 0 2 0 red", "right 1 2 0 red"]


def test_a_launch_over_hosts_that_fails():
    with pytest.raises(AssertionError, match="there is no host third"):
        run_over_hosts(2, "timeout 3 mpiexec -n 2 -host h1,third true", {})


# ---- cutting scripts out of documents

DOCUMENT = """
# Some document

first.py
```python

print("first",
      ...)
...
```

Then there is this one:
```bash
    first.py
```
```python
    import os
    if os.environ:
        print("second")
        
    os.environ['MASTER_PORT'] = '1234'
```   
"""  # noqa: W291, W293


def test_cutting():
    found = blocks(DOCUMENT)
    assert [block.kind for block in found] == ["python", "bash", "python"]
    assert find(Script("", "a", says_nothing, title="first.py"), found) is found[0]
    second = find(Script("", "b", says_nothing, calls=("os.environ",)), found)
    assert second is found[2] and second.text.splitlines()[:2] == ["import os", "if os.environ:"]
    assert fixed_port(second.text) == 1234 and fixed_port(found[0].text) is None
    with pytest.raises(AssertionError, match="2 blocks"):
        find(Script("", "c", says_nothing, calls=("print",)), found)


def test_edits():
    text = blocks(DOCUMENT)[0].text
    edits = (
        Edit("first.py", ",\n      ...", "", "nothing more to print"),
        Edit("first.py", "...", "pass", "nothing to do"),
        Edit("second.py", "...", "raise", "of another script"),
    )
    assert edited("first.py", text, edits) == '\nprint("first")\npass\n'
    with pytest.raises(AssertionError, match="has no"):
        edited("second.py", "import os\n", edits)


LINES = """
```
someone@left:~$ mpiexec -n 2 -ppn 1 -hosts left,right python a.py
one
two
```
```bash
    export X=1
    mpiexec -f hostfile \\
        -np 4 -ppn 2 python b.py
```
"""


def test_commands():
    found = blocks(LINES)
    shown = only_one("a.py", found, None, ("-hosts", "a.py")).text
    assert commands(shown) == "mpiexec -n 2 -ppn 1 -hosts left,right python a.py\n"
    says_same(["two", "one"], shown, ["left", "right"])
    with pytest.raises(AssertionError):
        says_same(["one"], shown, ["left", "right"])
    block = only_one("b.py", found, "bash", ("-np",)).text
    assert commands(block) == block and block.startswith("export X=1\nmpiexec")


def test_growth():
    block = blocks(LINES)[1].text
    lines = [f"[{r}] rank {r} of 4 on h{1 + r // 2} has grown by {r} KiB" for r in range(4)]
    says_growth(lines, block, ["h1", "h2"])
    for wrong in (
        lines[1:],
        [*lines[1:], lines[1]],
        [lines[0].replace("h1", "h2"), *lines[1:]],
        [lines[0].replace("by 0", "by 2000"), *lines[1:]],
    ):
        with pytest.raises(AssertionError):
            says_growth(wrong, block, ["h1", "h2"])
