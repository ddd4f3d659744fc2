"""torchrun by its own options, but torch is imported once: the ranks are forks of the launcher.

torchrun starts a Python for itself and one for each rank, and in each the imports take longer than
what most tests do. The lessons launch their scripts the usual way, and nbval runs the lessons.
What can't be seen here is how an interpreter ends: a fork leaves without that.
"""

import sys

import torch._dynamo  # noqa: F401  every optimizer's and DDP's constructor imports it
from torch.distributed.run import main

if __name__ == "__main__":
    main(["--run-path", "--start-method", "fork", *sys.argv[1:]])
