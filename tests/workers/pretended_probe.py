"""Lines that run on a pretended GPU, and lines that don't; for test_on_pretended_gpus.py."""

import os
import threading

import torch


def on_a_gpu(device):
    if device.type == "cuda":  # runs
        torch.cuda.synchronize()  # runs
    else:
        torch.set_num_threads(1)  # never
    return device  # runs


def nobody_calls():
    torch.cuda.synchronize()  # never


thread = threading.Thread(target=on_a_gpu, args=[torch.device("cuda", int(os.environ["RANK"]))])
thread.start()
thread.join()
