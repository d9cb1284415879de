"""`torch-ccl bench`: performance of the backend compared with Gloo and with MPI libraries.

command       the command line; imports neither torch nor numpy
collectives   one collective at a time, on several backends alternately (the default)
programs/     whole programs: decoding, a DDP step, an FSDP2 step   (--programs)
footprint     overhead, zero copy, waiting, memory, start-up        (--footprint)
peers/        libtccl against MPI libraries, in C++                 (--peers)
plot          the SVG files of --plot
"""

from torch_ccl.cli.bench.command import bench

__all__ = ["bench"]
