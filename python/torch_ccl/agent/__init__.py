"""The host agent: the program that `torch-ccl run` starts on every host. It starts the ranks there.

It is run as a directory, `python .../torch_ccl/agent`, without torch and without torch_ccl. So its
modules import only the standard library, and only __main__ imports the others. The package uses
them too: torch_ccl.single_card shares cores, reserves a port and ties ranks to their parent.
"""
