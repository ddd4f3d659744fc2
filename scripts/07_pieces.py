"""What the training in several precisions is made of, besides autocast and the scaler."""

import argparse

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.utils.data import DataLoader

from ddp_course import data, models

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def settings():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="digits", choices=data.NAMES)
    parser.add_argument("--model", default="cnn", choices=("cnn", "resnet18"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.005)
    return parser.parse_args()


def build(args, images):
    torch.manual_seed(0)
    if args.model == "resnet18":
        return models.resnet18_small(images.shape[0], images.classes)
    return models.SmallCNN(images.shape, images.classes)


def watching(sent, compress):
    """A hook that notes what DDP hands over, and sends it as it is, or halved."""

    def watch(_, bucket):
        kind = str(bucket.buffer().dtype)
        sent[kind] = sent.get(kind, 0) + bucket.buffer().nbytes
        hook = default_hooks.bf16_compress_hook if compress else default_hooks.allreduce_hook
        return hook(None, bucket)

    return watch


@torch.no_grad()
def accuracy(model, test, device, dtype):
    model.eval()
    right = 0
    for x, y in DataLoader(test, 256):
        with torch.amp.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    return right / len(test)
