"""Prints where a launcher has put this process, without torch."""

import os
import socket
import sys

names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "COLOUR")
words = [socket.gethostname(), *(os.environ[name] for name in names)]
sys.stdout.write(" ".join(words) + "\n")  # at once: labels of -l stand before each piece
