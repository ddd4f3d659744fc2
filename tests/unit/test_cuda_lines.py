"""Which lines concern GPUs is found in the source: guards whichever way round, and words."""

import cuda_lines
import pytest

# A line that ends in  # GPU  must be found, and no other.
SOURCES = {
    "guards": """
if device.type == "cuda":
    a()  # GPU
    if more:  # GPU
        b()  # GPU
else:
    c()
if device.type != "cuda":
    c()
else:
    a()  # GPU
if not me.device.type == "cpu":
    a()  # GPU
if self.cuda:
    a()  # GPU
if torch.cuda.is_available():
    a()  # GPU
if tensor.is_cuda and rank == 0:
    a()  # GPU
if tensor.is_cuda or rank == 0:
    c()
if device.type == "cpu":
    torch.cuda.is_available = lambda: False
""",
    "numbers": """
if gpus >= 2:
    a()  # GPU
else:
    c()
if 2 * size <= GPUS:
    a()  # GPU
if hardware.count_gpus() < 2:
    c()
else:
    a()  # GPU
if size > n:
    c()
""",
    "who leaves": """
def one():
    if device.type == "cpu":
        return 1
    a()  # GPU
    for x in y:  # GPU
        b()  # GPU

def two():
    if device.type != "cuda" or n < 2:
        raise ValueError
    return a()  # GPU

def three():
    if device.type != "cuda" and n < 2:
        return 1
    return c()

def four():
    for x in y:
        if x.device.type == "cpu":
            continue
        a()  # GPU
    c()
""",
    "words": """
x = torch.ones(2, device="cuda")  # GPU
y = f"cuda:{rank}"  # GPU
dist.init_process_group("nccl")  # GPU
with torch.cuda.stream(side):  # GPU
    c()
    model.cuda()  # GPU
def cuda():
    torch.cuda.synchronize()  # GPU
raise ValueError("cuda: what it is")
print("cuda and nccl")
import torch.cuda
""",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_lines_that_concern_gpus(source):
    marked = {n for n, line in enumerate(source.splitlines(), 1) if line.endswith("# GPU")}
    assert {*cuda_lines.find(source)} == marked


def test_a_statement_has_all_its_lines_and_a_compound_one_its_head():
    source = """
found = {
    "a": torch.cuda.current_device(),
}
for i in range(
    torch.cuda.device_count()
):
    c()
"""
    assert cuda_lines.find(source) == {2: range(2, 5), 5: range(5, 8)}
