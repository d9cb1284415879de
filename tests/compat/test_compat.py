"""Scripts that make the calls of the documents' scripts, started in the same ways."""

from pathlib import Path

import profile_table
import pytest
from documents import Edit, Script, blocks, edited, find, fixed_port, says_nothing
from launching import WAYS, free_port, run_script

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
