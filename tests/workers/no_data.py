"""Run by test_process_group.py under torchrun: every rank finds its folder missing."""

from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import data
from ddp_course.process_group import process_group


@record
def main():
    with process_group():
        data.load("folder", "/nowhere")


main()
