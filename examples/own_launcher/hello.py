"""Says who it is, as a program for MPI would ask."""

import os
from pathlib import Path

rank, size = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
hosts = Path(os.environ["MPI_LIKE_HOSTFILE"]).read_text().splitlines()
print(f"hello from {rank} of {size}, hostfile of {len(hosts)} lines", flush=True)
