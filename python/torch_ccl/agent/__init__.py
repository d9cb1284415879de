"""What `torch-ccl run` starts on every host: a program that starts the ranks there.

It is run as a directory, `python .../torch_ccl/agent`, so that nothing of torch is loaded. Its
files therefore import nothing but the standard library; only __main__ imports the others. How ranks
share cores, hold a port and end with who started them is of use to others too, as to single_card.
"""
