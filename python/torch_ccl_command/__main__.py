"""`python -m torch_ccl_command` is `torch-ccl`."""

from torch_ccl_command import main

main()
