"""What `torch-ccl run` starts on every host: a program that starts the ranks there.

It is run as a directory, `python .../cli/agent`, so that nothing of torch is loaded. Its files
therefore import nothing but the standard library; only __main__ imports the others.
"""
